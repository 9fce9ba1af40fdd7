"""The digest of an experiment: one for all spellings, another for any other value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.errors import ConfigError
from coterie.experiments.setup.config import resolve
from coterie.experiments.setup.digest import experiment_digest, experiment_parts
from coterie.experiments.setup.schema import Experiment
from coterie.toml_tables import load_toml

START: dict[str, Any] = {
    "algorithm": "dfedavgm",
    "data": "digits",
    "partition": "dirichlet(0.3)",
    "model": "mlp",
    "topology": "ring",
    "peers": 6,
}


def digest(**changes: Any) -> str:
    return experiment_digest(resolve({**START, **changes}))


def test_the_form() -> None:
    assert len(digest()) == 64
    assert int(digest(), 16)


@pytest.mark.parametrize(
    "same",
    [
        dict(reversed(START.items())),
        {"seed": 0, "rounds": 20, "training": {"lr": 0.05}},
        {"training": {"lr_decay": 1}},
        {"settings": {"mixing": "uniform"}},
        {"algorithm": "dfedavgm(uniform)"},
        {"model": "mlp(128)"},
        {"model": "mlp( hidden = 128 )"},
        {"partition": "dirichlet(0.30)"},
        {"data_dir": "/somewhere"},
        {"execution": {"executor": "looped", "workers": 1, "checkpoint_seconds": 1}},
    ],
)
def test_another_spelling_is_the_same(same: dict[str, Any]) -> None:
    assert digest(**same) == digest()


def test_a_preset_is_what_it_says() -> None:
    resolved = resolve({**START, "preset": "blend-dfl"})
    spelled = resolved.model_copy(update={"preset": None})
    assert experiment_digest(resolved) == experiment_digest(spelled) != digest()


def test_a_whole_file_written_out_is_the_same(tmp_path: Path) -> None:
    experiment = resolve(START)
    (tmp_path / "all.toml").write_text(experiment.to_toml())
    assert experiment_digest(resolve(load_toml(tmp_path / "all.toml"))) == experiment_digest(experiment)


def test_any_other_value_is_another() -> None:
    changes: list[dict[str, Any]] = [
        {"algorithm": "d-psgd"},
        {"settings": {"mixing": "metropolis"}},
        {"settings": {"momentum": 0.8}},
        {"task": "regression"},
        {"metrics": ["log-loss"]},
        {"metrics": ["auc", "log-loss"]},
        {"data": "synthetic(1,1)"},
        {"model": "mlp(64)"},
        {"model": "mlr"},
        {"partition": "dirichlet(0.4)"},
        {"partition": "iid"},
        {"topology": "full"},
        {"peers": 7},
        {"seed": 1},
        {"init": "independent"},
        {"classes": 10},
        {"batchnorm": "local"},
        {"shared": "hidden"},
        {"adapter": "lora(r=2)"},
        {"stopping": {"min_improvement": 0.1}},
        {"training": {"steps": 3}},
        {"splitting": {"validation": 0.1}},
        {"evaluation": {"every": 3}},
        {"faults": {"churn": 0.1}},
        {"payload": "8-bit"},
        {"privacy": {"opened": 0.5}},
        {"faults": {"byzantine": {"sign-flip": "1"}}},
        {"robust": "near"},
    ]
    digests = [digest(), *(digest(**change) for change in changes)]
    assert len(set(digests)) == len(digests)
    tested = {key for change in changes for key in change}
    left_out = {"data_dir", "execution", "preset", "models", "names", "rounds"}
    assert tested | left_out == set(Experiment.model_fields)


def test_what_a_quorum_may_change_does_not_count() -> None:
    assert digest() == digest(rounds=21) == digest(training={"lr": 0.06})


def test_peers_with_another_model() -> None:
    def with_models(models: dict[str, str]) -> str:
        return digest(algorithm="local", models=models)

    one = with_models({"mlp(64)": "0-2", "mlr": "4"})
    assert one == with_models({"mlr": "4", "mlp(hidden=64)": "0,1,2"})
    assert one != with_models({"mlp(64)": "0-1", "mlr": "4"})


def test_own_files_count_by_content(tmp_path: Path) -> None:
    digests = []
    for folder, content in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(f"VALUE = {content}\n")
        (tmp_path / folder / "edges.txt").write_text("0 1\n")
        table = {**START, "model": "own.py:Net", "data": "own.py:load", "topology": "edges(edges.txt)"}
        digests.append(experiment_digest(resolve(table, base_dir=tmp_path / folder)))
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "a" / "own.py").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*own\.py"):
        experiment_digest(resolve(table, base_dir=tmp_path / "a"))


def test_parts_name_what_differs(tmp_path: Path) -> None:
    """A file, also one that is imported from beside it, and the keys that it stands for."""
    found = []
    for folder, content, steps in (("a", "1", 3), ("b", "1", 3), ("c", "2", 3), ("d", "2", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text("import beside\n")
        (tmp_path / folder / "beside.py").write_text(f"VALUE = {content}\n")
        table = {**START, "model": "own.py:Net", "training": {"steps": steps}}
        found.append(experiment_parts(resolve(table, base_dir=tmp_path / folder)))
    assert found[0] == found[1]

    def different(one: int, other: int) -> set[str]:
        return {name for name in found[one] if found[one][name] != found[other][name]}

    assert different(0, 2) == {"model", "beside.py"}
    assert different(2, 3) == {"training"}


ALGORITHM = """
from dataclasses import dataclass
import coterie

@dataclass(frozen=True)
class Mine(coterie.ModelAlgorithm):
    share: float = 0.5
    facts = coterie.Facts(paper="ours", measured="after_mixing", communication="one model per link")

    def round(self, state, node):
        inbox = yield coterie.Exchange(state.params)
        return coterie.ModelState(coterie.average(state.params, inbox))
"""


def test_an_own_algorithm_counts_by_its_file_and_its_settings(tmp_path: Path) -> None:
    """Each organisation has a copy of the file, somewhere: the copies must agree, the places need not."""

    def of(folder: str, content: str, algorithm: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "mine.py").write_text(content)
        return experiment_digest(resolve({**START, "algorithm": algorithm}, base_dir=tmp_path / folder))

    first = of("a", ALGORITHM, "mine.py:Mine")
    assert of("b", ALGORITHM, "mine.py:Mine(0.50)") == first
    assert of("b", ALGORITHM, "mine.py:Mine(0.7)") != first
    assert of("c", ALGORITHM + "# edited\n", "mine.py:Mine") != first


def test_arguments_of_own_parts_count(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("VALUE = 1\n")
    one, same, other = (
        experiment_digest(resolve({**START, "model": f"own.py:Net(hidden={h})"}, base_dir=tmp_path))
        for h in ("8", "8.0", "9")
    )
    assert one == same != other
