"""Whole runs on tokens, several inputs and sequences: methods, executors, predictions, resuming."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.errors import ConfigError

WORDS, PEERS = 15, 4


class Reader(nn.Module):
    """The mean of the words that are there, and a table beside it if there is one."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.words, self.table = nn.Embedding(WORDS, 6), nn.Linear(2, 6)
        self.hidden, self.head = nn.Linear(6, 6), nn.Linear(6, n_classes)

    def forward(
        self, tokens: Tensor, table: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mask = torch.ones_like(tokens) if attention_mask is None else attention_mask
        seen = self.words(tokens) * mask[..., None]
        seen = seen.sum(1) / mask.sum(1, keepdim=True)
        if table is not None:
            seen = seen + self.table(table)
        features = torch.tanh(self.hidden(seen))
        return self.head(features), features


def labelled(x: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    return x, rng.integers(0, 2, 24)


def sentences(rng: np.random.Generator) -> list[Any]:
    return [rng.integers(0, WORDS, rng.integers(1, 7)) for _ in range(24)]


KINDS: dict[str, Any] = {
    "tokens": lambda rng: rng.integers(0, WORDS, (24, 5)),
    "tuple": lambda rng: (rng.integers(0, WORDS, (24, 5)), rng.normal(size=(24, 2))),
    "dict": lambda rng: {"table": rng.normal(size=(24, 2)), "tokens": rng.integers(0, WORDS, (24, 5))},
    "sequences": sentences,
    "sequences and table": lambda rng: {"tokens": sentences(rng), "table": rng.normal(size=(24, 2))},
}


def data(kind: str) -> list[Any]:
    rng = np.random.default_rng(5)
    return [labelled(KINDS[kind](rng), rng) for _ in range(PEERS)]


def simulate(kind: str, algorithm: str = "d-psgd", **others: Any) -> coterie.Run:
    return coterie.simulate(
        **{
            "algorithm": algorithm,
            "data": data(kind),
            "model": Reader,
            "topology": "ring",
            "rounds": 2,
            "splitting": {"validation": 0.2},
            "training": {"lr": 0.1, "batch_size": 8},
            "execution": {"executor": "looped"},
            **others,
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_executors_agree_on_any_input(kind: str) -> None:
    stacked, looped = (simulate(kind, execution={"executor": name}) for name in ("stacked", "looped"))
    for name, value in looped.params.items():
        torch.testing.assert_close(stacked.params[name], value, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(stacked.accuracy_over_time(), looped.accuracy_over_time())


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("kd-pdfl", {"layer": "hidden"}),
        ("ppdl", {}),
        ("blend-dfl", {}),
        ("dfedpgp", {}),
        ("pfedkd-wcl", {}),
        ("dfedsam", {}),
        ("per-fedavg", {}),
    ],
)
def test_methods_take_sequences(algorithm: str, settings: dict[str, Any]) -> None:
    """Those that distil, compare layers, look at gradients twice, or go through a hub."""
    star = {"topology": "star"} if algorithm in ("pfedkd-wcl", "per-fedavg") else {}
    runs = [
        simulate("sequences", algorithm, settings=settings, execution={"executor": name}, **star)
        for name in ("stacked", "looped")
    ]
    for name, value in runs[1].params.items():
        torch.testing.assert_close(runs[0].params[name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_module(kind: str) -> None:
    run, x = simulate(kind), data(kind)[1][0]
    module = Reader(2)
    module.load_state_dict(run.model(1))
    found = run.predict(1, x)
    with torch.no_grad():
        for place in range(3):
            parts = x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else [x]
            one = [torch.as_tensor(part[place])[None] for part in parts]
            one = [part.float() if part.is_floating_point() else part for part in one]
            named = dict(zip(x, one, strict=True)) if isinstance(x, dict) else {}
            logits = module(*([] if named else one), **named)[0]
            torch.testing.assert_close(found[place], logits[0].double().softmax(0), rtol=1e-5, atol=1e-6)


class Speaker(nn.Module):
    """The next word after each, from the mean of those before."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, n_classes)

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Any:
        heard = (self.words(tokens) * attention_mask[..., None]).cumsum(1)
        return SimpleNamespace(logits=self.head(heard / attention_mask.cumsum(1)[..., None]))


@pytest.mark.parametrize("executor", ["stacked", "looped"])
def test_targets_at_each_position_of_sequences(executor: str) -> None:
    """Perplexity by hand, of every sentence alone and without its padding."""
    rng = np.random.default_rng(6)
    said = [[rng.integers(0, WORDS, rng.integers(2, 8)) for _ in range(20)] for _ in range(PEERS)]
    said[0][0][-1] = WORDS - 1  # all peers together know every word
    pairs = [([s[:-1] for s in one], [s[1:] for s in one]) for one in said]
    run = simulate(
        "sequences",
        data=[{"train": pair, "validation": pair, "test": pair} for pair in pairs],
        model=Speaker,
        task="next-token",
        execution={"executor": executor},
        splitting={},
    )
    assert run.metric.name == "perplexity"
    for peer, (x, y) in enumerate(pairs):
        net = Speaker(WORDS)
        net.load_state_dict(run.model(peer))
        total = torch.zeros(())
        with torch.no_grad():
            for words, following in zip(x, y, strict=True):
                tokens = torch.from_numpy(words)[None]
                logits = net(tokens, torch.ones_like(tokens)).logits[0]
                total += nn.functional.cross_entropy(logits, torch.from_numpy(following), reduction="sum")
        expected = (total / sum(map(len, y))).exp()
        assert float(run.personal_scores[peer]) == pytest.approx(float(expected), rel=1e-4)


def test_a_run_on_sequences_is_resumed_with_the_same_numbers(tmp_path: Path) -> None:
    whole = simulate("sequences and table", rounds=4)

    def stop(record: Any, *_: Any) -> None:
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(
            "sequences and table",
            rounds=4,
            run_dir=tmp_path / "run",
            execution={"executor": "looped", "checkpoint_seconds": 0},
            observer=stop,
        )
    rest = coterie.simulate(
        resume_from=tmp_path / "run", data=data("sequences and table"), model=Reader, algorithm="d-psgd"
    )
    for name, value in whole.params.items():
        assert torch.equal(rest.params[name], value), name


def test_pixels_are_given_as_real_numbers() -> None:
    """Whole numbers that the network cannot take become what they always were, bit by bit."""
    rng = np.random.default_rng(0)
    pixels = [(rng.integers(0, 256, (20, 1, 4, 4)), rng.integers(0, 3, 20)) for _ in range(3)]
    kinds = (np.float32, np.int64, np.uint8)
    runs = [
        coterie.simulate("d-psgd", data=[(x.astype(kind), y) for x, y in pixels], model="mlp", rounds=2)
        for kind in kinds
    ]
    for name, value in runs[0].params.items():
        assert all(torch.equal(run.params[name], value) for run in runs[1:]), name
    assert torch.equal(runs[2].predict(0, pixels[0][0].astype(np.uint8)), runs[0].predict(0, pixels[0][0]))


class OfBytes(Reader):
    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Any:
        assert tokens.dtype == torch.int64  # an embedding takes no bytes
        return super().forward(tokens % WORDS)


class Attending(Reader):
    """Can be batched in training; in evaluation it takes another way, which cannot."""

    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes)
        self.look = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, tokens: Tensor, table: Any = None, attention_mask: Any = None) -> Any:
        words = self.words(tokens)
        return self.head(self.look(words, words, words)[0].mean(1))


class Convolving(Reader):
    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes)
        self.near, self.norm = nn.Conv1d(6, 6, 3, padding=1), nn.LayerNorm(6)

    def forward(self, tokens: Tensor, table: Any = None, attention_mask: Any = None) -> Any:
        words = self.norm(self.words(tokens))
        words = nn.functional.scaled_dot_product_attention(words, words, words)
        return self.head(torch.relu(self.near(words.mT)).amax(2))


def test_a_way_that_only_evaluation_takes_is_tried_when_the_executor_is_chosen() -> None:
    """A warning, that it is slow, is an error in tests."""
    with pytest.raises(ConfigError, match="cannot run this model"):
        simulate("tokens", model=Attending, execution={"executor": "stacked"})
    assert simulate("tokens", model=Attending, execution={"executor": "auto"}).executor == "looped"


def test_convolutions_norms_and_attention_of_words_are_stacked() -> None:
    stacked, looped = (
        simulate("tokens", model=Convolving, execution={"executor": name}) for name in ("stacked", "looped")
    )
    for name, value in looped.params.items():
        torch.testing.assert_close(stacked.params[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_bytes_are_tokens_for_an_embedding() -> None:
    rng = np.random.default_rng(0)
    texts = [labelled(rng.integers(0, 256, (24, 5)).astype(np.uint8), rng) for _ in range(PEERS)]
    assert simulate("tokens", data=texts, model=OfBytes).finished


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS - 1, 2), nn.Linear(2, 2)

    def forward(self, ids: Tensor, table: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1) + table)


class Small(Two):
    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.words(ids).mean(1))


class Wide(Two):
    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.words(ids % 3).flatten(1))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("dict", {"model": Two}, r"forward\(ids: .*\) .* a sample here has table and tokens: .* 'ids'"),
        ("tuple", {"model": Small}, "2 inputs by position: too many positional arguments"),
        ("sequences", {"model": Small}, "unexpected keyword argument 'attention_mask'"),
        ("tokens", {"model": Small}, f"numbers up to {WORDS - 1}: an embedding .* needs {WORDS} entries"),
        ("tokens", {"model": Wide}, "with whole numbers, .*cannot be multiplied.*; with real numbers, .*"),
        ("dict", {"model": "mlp"}, "model 'mlp' takes one array per sample, .* table and tokens"),
        ("sequences", {"model": "mlp"}, "1 input by position and attention_mask"),
        ("dict", {"training": {"augment": "flip"}}, "augment is for samples of one tensor.*table, tokens"),
        ("tokens", {"training": {"augment": "flip"}}, "augment 'flip' is for images"),
    ],
)
def test_what_does_not_fit_is_said_before_training(kind: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulate(kind, **changes)


def test_missing_values_are_found_in_every_input() -> None:
    broken = data("dict")
    broken[2][0]["table"][3, 1] = np.nan
    with pytest.raises(coterie.CoterieError, match=r"1 samples have NaN or infinite values, first .* peer 2"):
        simulate("dict", data=broken)
