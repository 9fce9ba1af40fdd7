"""`hf:FOLDER`: a network of transformers from a folder, with its weights and a new classifier."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tiny_transformer import CLASSES, HIDDEN, LENGTH, LORA, save_tiny_model, sentences

import coterie
from coterie.catalogue import adapters, pretrained
from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.contents import contents
from coterie.experiments.setup.digest import experiment_digest, fingerprint
from coterie.models import build

SHAPES = {"input_ids": (LENGTH,), "attention_mask": (LENGTH,)}
WORDS = {name: torch.ones(2, LENGTH, dtype=torch.long) for name in SHAPES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the network fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("something asked the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def built(folder: Path, seed: int = 0, **more: Any) -> torch.nn.Module:
    return build(f"hf:{folder}", SHAPES, CLASSES, seed=seed, example=WORDS, **more)


def test_weights_are_those_of_the_folder_and_the_classifier_is_new(folder: Path) -> None:
    stored = transformers.BertModel.from_pretrained(folder)
    one, again, other = built(folder), built(folder), built(folder, seed=1)
    for name, value in stored.named_parameters():
        assert torch.equal(one.get_parameter(f"bert.{name}"), value)
    assert one.get_parameter("classifier.weight").shape == (CLASSES, HIDDEN)
    for name, value in one.named_parameters():
        assert torch.equal(value, again.get_parameter(name))
    assert not torch.equal(one.get_parameter("classifier.weight"), other.get_parameter("classifier.weight"))
    assert all(value.requires_grad and value.dtype == torch.float32 for value in one.parameters())


def test_a_stored_classifier_for_other_classes_is_replaced(folder: Path) -> None:
    model = transformers.BertForSequenceClassification.from_pretrained(folder, num_labels=7)
    model.save_pretrained(folder)
    assert built(folder).get_parameter("classifier.weight").shape == (CLASSES, HIDDEN)
    kept = build(f"hf:{folder}", SHAPES, 7, seed=0, example=WORDS)
    assert torch.equal(kept.get_parameter("classifier.weight"), model.classifier.weight)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModel": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text("raise SystemExit('executed')")


def rename_all(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def no_type(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def other_network(folder: Path) -> None:
    save_file({"a.weight": torch.zeros(2)}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (pickled, "the folder holds only pytorch_model.bin, which is not safe to open"),
        (without_weights, "the folder holds none at all"),
        (cut, "cannot be loaded"),
        (own_code, "cannot be loaded"),
        (rename_all, "holds no config.json"),
        (no_json, "cannot read its config.json"),
        (no_type, "does not say a model_type"),
        (other_network, "none of the folder's weights belong"),
    ],
)
def test_folders_that_cannot_be_used(folder: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoil(folder)
    with pytest.raises(ConfigError) as error:
        built(folder)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="there is no such folder; models are read from disk, never downloaded"
    ):
        coterie.simulate(data=sentences(), model="hf:bert-base-uncased", rounds=1)


def test_data_that_it_cannot_take_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="fails on a batch"):
        coterie.simulate(model=f"hf:{folder}", peers=2, rounds=1)  # images


def test_paths_start_from_the_file_of_the_experiment(folder: Path) -> None:
    table = {"data": "own", "model": "hf:tiny", "models": {"hf:tiny": "0"}}
    experiment = resolve(table, base_dir=folder.parent)
    assert experiment.model == f"hf:{folder}"
    assert list(experiment.models) == [f"hf:{folder}"]


def test_weights_count_by_content_wherever_they_are(folder: Path, tmp_path: Path) -> None:
    def of(place: Path, **more: str) -> Any:
        return resolve({"algorithm": "d-psgd", "model": f"hf:{place}", **more})

    (tmp_path / "there").mkdir()
    there = save_tiny_model(tmp_path / "there" / "same")
    assert experiment_digest(of(folder)) == experiment_digest(of(there))
    assert set(contents(of(folder))) == {str(folder / "config.json"), str(folder / "model.safetensors")}
    before = experiment_digest(of(folder)), fingerprint(of(folder))
    assert experiment_digest(of(folder, adapter=LORA)) != before[0]
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert experiment_digest(of(folder)) != before[0]
    assert fingerprint(of(folder)) != before[1]


def test_one_way_to_write_an_adapter_is_as_good_as_another(folder: Path) -> None:
    texts = (LORA, "lora( r = 2, alpha=4.0, target=query|value, dropout=0 )")
    digests = {experiment_digest(resolve({"model": f"hf:{folder}", "adapter": text})) for text in texts}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("package", "registry", "name", "extra"),
    [("transformers", pretrained, "hf", "transformers"), ("peft", adapters, "lora", "adapters")],
)
def test_what_is_not_installed_gets_a_sentence(
    package: str, registry: Any, name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"hf": "coterie.models.pretrained:hugging_face", "lora": "coterie.models.adapters:LoRA"}[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, home.partition(":")[0], raising=False)
    monkeypatch.setitem(registry._factories, name, home)  # as before somebody asked for it
    with pytest.raises(ConfigError) as error:
        registry[name]
    assert f"pip install 'coterie[{extra}]'" in str(error.value)


def test_nobody_waits_for_them_who_does_not_use_them() -> None:
    code = "import coterie, sys; coterie.simulate; print({'transformers', 'peft'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
