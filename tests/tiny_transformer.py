"""Small language models in Hugging Face's format, and sentences of numbers for them."""

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


def save_tiny_language_model(folder: Path) -> Path:
    """One that tells the next word, with random weights; its outputs are tied to its embeddings."""
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(6)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def counting(peers: int = 4, samples: int = 12, classes: int = WORDS) -> Federation:
    """Sentences that count: every word is followed by the next number. -100 is no target."""
    generator = torch.Generator().manual_seed(4)

    def some(count: int) -> tuple[dict[str, Tensor], Tensor]:
        words = torch.randint(0, 10, (count, 1), generator=generator) + torch.arange(LENGTH + 1)
        mask = torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (count, 1), generator=generator)
        y = words[:, 1:].where(mask, -100)
        return {"input_ids": words[:, :-1] * mask, "attention_mask": mask.long()}, y

    peers_data = [{"train": some(samples), "test": some(9)} for _ in range(peers)]
    return from_peers(peers_data, n_classes=classes, task="next-token")
