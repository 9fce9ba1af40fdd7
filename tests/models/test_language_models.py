"""`hf:FOLDER` with task next-token: the language model of the folder itself, alone and with an adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from tiny_transformer import HIDDEN, LAYERS, LENGTH, WORDS, counting, save_tiny_language_model
from torch import Tensor
from torch.nn import functional

import coterie
from coterie.errors import ConfigError

LORA = "lora(r=2,alpha=4,target=c_attn)"
ROUNDS, PEERS = 3, 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_language_model(tmp_path / "tiny")


def simulate(folder: Path, data: coterie.Federation, **others: Any) -> coterie.Run:
    how = {"training": {"optimizer": "adamw", "lr": 0.02, "batch_size": 4}, **others}
    return coterie.simulate(
        "d-psgd", data, f"hf:{folder}", task="next-token", topology="full", rounds=ROUNDS, **how
    )


def perplexity(model: Any, data: coterie.Federation, peer: int) -> float:
    """By transformers' model and torch's cross entropy, over the positions with a target."""
    x, y = held_out(data, peer)
    with torch.no_grad():
        logits = model.eval()(**x).logits
    assert logits.shape == (len(y), LENGTH, WORDS)
    return float(functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100).exp())


def held_out(data: coterie.Federation, peer: int) -> tuple[dict[str, Tensor], Tensor]:
    assert isinstance(data.x, dict)
    index = data.test.of(peer)
    return {name: values[index] for name, values in data.x.items()}, data.y[index]


def stock(folder: Path) -> Any:
    return transformers.GPT2LMHeadModel.from_pretrained(folder)


def test_peers_train_the_language_model_of_the_folder(folder: Path) -> None:
    data = counting(PEERS)
    run = simulate(folder, data)
    assert run.metric.name == "perplexity"
    for peer in range(PEERS):
        model = stock(folder)
        before = perplexity(model, data, peer)
        model.load_state_dict(run.model(peer))
        after = perplexity(model, data, peer)
        assert float(run.personal_scores[peer]) == pytest.approx(after, rel=1e-5)
        assert after < before / 2  # the next number is easy to tell


def test_its_weights_are_those_of_the_folder(folder: Path) -> None:
    """Training with a rate of nearly nothing leaves the folder's weights: nothing of them is new."""
    data = counting(PEERS)
    run = simulate(folder, data, training={"lr": 1e-12, "batch_size": 4})
    for peer in range(PEERS):
        expected = perplexity(stock(folder), data, peer)
        assert float(run.personal_scores[peer]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of PEFT's own call
def test_an_adapter_of_a_language_model_is_all_that_trains_and_travels(folder: Path, tmp_path: Path) -> None:
    """No layer is new, so that none trains in full. Stock PEFT gives the same perplexity."""
    data = counting(PEERS)
    run = simulate(folder, data, adapter=LORA)
    assert {name.rpartition(".lora_")[2][:1] for name in run.params} == {"A", "B"}
    factors = LAYERS * 2 * (HIDDEN + 3 * HIDDEN)  # r = 2, and c_attn makes queries, keys and values
    assert run.totals.bytes_sent.tolist() == [ROUNDS * (PEERS - 1) * 4 * factors] * PEERS
    run.save(1, tmp_path / "saved")
    model = peft.PeftModel.from_pretrained(stock(folder), tmp_path / "saved")
    assert perplexity(model, data, 1) == pytest.approx(float(run.personal_scores[1]), rel=1e-5)
    assert float(run.personal_scores[1]) < perplexity(stock(folder), data, 1)


def test_another_vocabulary_gets_a_sentence(folder: Path) -> None:
    data = counting(PEERS, classes=WORDS - 1)
    with pytest.raises(ConfigError) as error:
        simulate(folder, data)
    assert str(WORDS) in str(error.value)
    assert str(WORDS - 1) in str(error.value)


@pytest.mark.parametrize("one_way", [False, True])
def test_one_that_looks_ahead_is_refused(one_way: bool, tmp_path: Path) -> None:
    """An encoder sees the next word, which is what it is asked, unless it is made to read one way."""
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=LENGTH,
        is_decoder=one_way,
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "encoder")
    if one_way:
        assert simulate(tmp_path / "encoder", counting(PEERS)).metric.name == "perplexity"
    else:
        with pytest.raises(ConfigError, match="looks at the words that follow"):
            simulate(tmp_path / "encoder", counting(PEERS))
