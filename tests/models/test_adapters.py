"""Adapters from PEFT: what they freeze, what travels of them, and folders that stock PEFT loads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from tiny_transformer import CLASSES, HIDDEN, LAYERS, LENGTH, LORA, save_tiny_model, sentences
from torch import Tensor, nn

import coterie
from coterie.errors import ConfigError
from coterie.experiments.runs.personal import network_of
from coterie.models import build, model_tree

A, B = "query.lora_A.default.weight", "query.lora_B.default.weight"
FACTORS = LAYERS * 2 * 2 * (2 * HIDDEN)  # layers, query and value, two factors of rank 2
HEAD = CLASSES * HIDDEN + CLASSES
QUICK: dict[str, Any] = {
    "rounds": 2,
    "training": {"optimizer": "adamw", "lr": 0.01, "batch_size": 5, "epochs": 1},
    "execution": {"executor": "looped", "workers": 2},
    "evaluation": {"global_accuracy": "never"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def simulate(algorithm: str, folder: Path, **changes: Any) -> Any:
    return coterie.simulate(
        algorithm, sentences(), f"hf:{folder}", **{"topology": "ring", "adapter": LORA, **QUICK, **changes}
    )


def layer(params: dict[str, Tensor], end: str) -> Tensor:
    """(peers, ...) of the first layer that ends so."""
    return next(value for name, value in params.items() if name.endswith(end))


def test_only_factors_and_the_new_classifier_are_a_peers_model(folder: Path) -> None:
    run = simulate("d-psgd", folder)
    assert sum(value[0].numel() for value in run.params.values()) == FACTORS + HEAD
    ends = ("lora_A.default.weight", "lora_B.default.weight", "modules_to_save.default")
    assert all(any(end in name for end in ends) for name in run.params)
    assert int(run.totals.bytes_sent.sum()) == 2 * 4 * 2 * 4 * (FACTORS + HEAD)  # rounds, peers, links, bytes


def test_dec_lora_averages_both_factors(folder: Path) -> None:
    """D-PSGD on both factors (Ghiasvand et al. 2025): on a full graph all peers have the mean of each."""
    run = simulate("d-psgd", folder, topology="full", shared="lora_A|lora_B", rounds=1)
    alone = simulate("local", folder, rounds=1)
    for end in (A, B):
        mean = layer(alone.params, end).mean(0)
        for row in layer(run.params, end):
            torch.testing.assert_close(row, mean, rtol=1e-5, atol=1e-7)
    head = "classifier.modules_to_save.default.weight"
    torch.testing.assert_close(layer(run.params, head), layer(alone.params, head))
    assert int(run.totals.bytes_sent.sum()) == 4 * 3 * 4 * FACTORS


def test_fedsa_lora_shares_a_and_keeps_b(folder: Path) -> None:
    """DFedPGP whose body is lora_A (Guo et al. 2025, without a server): A is averaged, B stays at home."""
    run = simulate("dfedpgp", folder, topology="full", shared="lora_A", rounds=2)
    a, b = layer(run.params, A), layer(run.params, B)
    for row in a[1:]:  # on a full graph one push-sum gives everyone the mean
        torch.testing.assert_close(row, a[0], rtol=1e-5, atol=1e-7)
    assert not any(torch.equal(row, b[0]) for row in b[1:])
    mass, per_message = 8, FACTORS // 2 * 4
    assert int(run.totals.bytes_sent.sum()) == 2 * 4 * 3 * (per_message + mass)
    start = layer(run.module.state_dict(), A)
    assert not torch.equal(a[0], start)  # it trained


def test_executors_agree() -> None:
    """Stacked by vmap, and one peer after another."""
    stacked, looped = (
        coterie.simulate(
            "d-psgd",
            [(x, y) for x, y in vectors()],
            Small,
            topology="ring",
            adapter="lora(r=2,target=hidden)",
            **{**QUICK, "execution": {"executor": name}},
        )
        for name in ("stacked", "looped")
    )
    assert set(stacked.params) == set(looped.params)
    for name, value in stacked.params.items():
        torch.testing.assert_close(value, looped.params[name], rtol=1e-4, atol=1e-6)


def vectors() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(2))
    return [(part, torch.arange(12) % CLASSES) for part in x]


class Small(nn.Module):
    """A network that is not of transformers."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.hidden, self.more, self.top = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(torch.tanh(self.more(torch.tanh(self.hidden(x)))))


@pytest.mark.parametrize(
    ("adapter", "factors", "in_full"),
    [
        ("lora(r=1)", {"hidden", "more"}, {"top"}),
        ("lora(r=1,target=hidden)", {"hidden"}, {"top"}),
        ("lora(r=1,target=hidden|top)", {"hidden", "top"}, set()),
        ("lora(r=1,train=none)", {"hidden", "more", "top"}, set()),
        ("lora(r=1,target=hidden,train=more)", {"hidden"}, {"more"}),
    ],
)
def test_which_layers_train(adapter: str, factors: set[str], in_full: set[str]) -> None:
    names = model_tree(build(Small, (5,), CLASSES, seed=0, adapter=adapter))
    parts = {name: name.removeprefix("base_model.model.").split(".") for name in names}
    assert {part[0] for part in parts.values() if "lora_A" in part} == factors
    assert {part[0] for part in parts.values() if "modules_to_save" in part} == in_full


def test_an_adapter_starts_as_the_network_itself() -> None:
    """B is zero at first (Hu et al. 2022), so nothing changes before something is learned."""
    plain = build(Small, (5,), CLASSES, seed=0)
    adapted = build(Small, (5,), CLASSES, seed=0, adapter="lora(r=2)")
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(adapted(x), plain(x))


def test_a_module_that_was_passed_is_not_changed() -> None:
    module = Small((5,), CLASSES)
    before = copy.deepcopy(module.state_dict())
    for _ in range(2):
        coterie.simulate("local", vectors(), module, adapter="lora(r=2)", **QUICK)
    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(value.requires_grad for value in module.parameters())


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        (
            "lora(target=qeury)",
            "target 'qeury' matches no layer that can have an adapter; these can: hidden, more",
        ),
        ("lora(train=haed)", "train 'haed' matches no layer with parameters"),
        ("lora(target=more,train=more)", "more cannot be both in target and in train"),
        ("lora(r=0)", "r must be at least 1"),
        ("lora(alpha=0)", "alpha above 0"),
        ("lora(dropout=1)", "dropout from 0 to below 1"),
        ("lora(rank=2)", "has no argument 'rank'"),
        ("lora(r=two)", "r must be"),
        ("loar(r=2)", "unknown adapter 'loar'; did you mean lora?"),
        ("lora(target=|)", "holds no pattern"),
    ],
)
def test_adapters_that_cannot_be(adapter: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        coterie.simulate("local", vectors(), Small, adapter=adapter, **QUICK)
    assert said in str(error.value)


def test_a_network_without_such_layers_is_refused() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :CLASSES] * self.weight

    with pytest.raises(ConfigError, match="the model has none, such as a linear one"):
        coterie.simulate("local", vectors(), Scale, adapter="lora(r=2)", **QUICK)


def test_partial_methods_need_to_know_what_to_share_without_a_head(folder: Path) -> None:
    with pytest.raises(ConfigError, match="say what travels instead, such as shared = 'lora_A'"):
        simulate("dfedpgp", folder, adapter="lora(r=2,target=query,train=none)")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # of PEFT's own call
def test_a_personal_adapter_loads_in_stock_peft(folder: Path, tmp_path: Path) -> None:
    """And gives what Coterie's own model of this peer gives."""
    run = simulate("d-psgd", folder, shared="lora_A|lora_B")
    saved = run.save(2, tmp_path / "peer-2")
    names = {path.name for path in saved.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "model.json"} <= names
    assert "model.safetensors" not in names
    assert not any(path.is_dir() for path in saved.iterdir())
    assert json.loads((saved / "adapter_config.json").read_text())["r"] == 2
    base = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=CLASSES)
    loaded = peft.PeftModel.from_pretrained(base, saved).eval()
    data = sentences()
    words = {name: part[data.test.of(2)] for name, part in data.x.items()}  # type: ignore[union-attr]
    assert words["input_ids"].shape[1] == LENGTH
    with torch.no_grad():
        theirs = loaded(**words).logits
        ours = network_of(run, 2)(**words).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    right = float((theirs.argmax(1) == data.y[data.test.of(2)]).float().mean())
    assert float(run.accuracy_over_time("after_mixing")[-1][2]) == pytest.approx(right, abs=1e-6)


def test_an_interrupted_run_goes_on(folder: Path, tmp_path: Path) -> None:
    whole = simulate("dfedpgp", folder, shared="lora_A", rounds=3, run_dir=tmp_path / "whole")
    stop = {"execution": {**QUICK["execution"], "checkpoint_seconds": 0.0}}

    class Interrupted(Exception):
        pass

    def after_one(record: Any, *_: Any) -> None:
        if record.round == 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        simulate(
            "dfedpgp", folder, shared="lora_A", rounds=3, run_dir=tmp_path / "cut", observer=after_one, **stop
        )
    resumed = coterie.simulate(data=sentences(), resume_from=tmp_path / "cut")
    for name, value in whole.params.items():
        assert torch.equal(value, resumed.params[name])
    assert (tmp_path / "cut" / "checkpoint.safetensors").stat().st_size < 40 * (FACTORS + HEAD) * 4
