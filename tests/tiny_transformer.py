"""A language model of a few thousand parameters in Hugging Face's format, and sentences of numbers for it."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from torch import Tensor

from coterie.data import Federation, from_peers

WORDS, LENGTH, CLASSES, HIDDEN, LAYERS = 40, 6, 3, 8, 2
LORA = "lora(r=2,alpha=4,target=query|value)"


def save_tiny_model(folder: Path, length: int = LENGTH) -> Path:
    """An encoder with random weights and no classifier: pretrained ones have none for one's own classes."""
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=length,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        transformers.BertModel(config).save_pretrained(folder)
    return folder


def save_tiny_tokenizer(folder: Path) -> Path:
    """One that spells: its words are letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "vocab.txt").write_text("\n".join(known))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def sentences(peers: int = 4, samples: int = 12) -> Federation:
    """Every class has words of its own; sentences have different lengths, padded with a mask."""
    generator = torch.Generator().manual_seed(3)

    def some(count: int) -> tuple[dict[str, Tensor], Tensor]:
        y = torch.arange(count) % CLASSES
        words = 1 + 12 * y[:, None] + torch.randint(0, 12, (count, LENGTH), generator=generator)
        mask = torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (count, 1), generator=generator)
        return {"input_ids": words * mask, "attention_mask": mask.long()}, y

    return from_peers([{"train": some(samples), "test": some(9)} for _ in range(peers)], n_classes=CLASSES)
