"""Every block of docs/results.md is run, in its order, and says what the page says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import documents
import pytest

import coterie

DOCUMENT = Path(__file__).parents[2] / "docs" / "results.md"
MEASURED = ("_after_local", "_after_mixing")


@pytest.fixture(scope="module", name="names")
def _names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the blocks define, run one after the other in a folder of their own."""
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("results"))
        for block in documents.blocks(DOCUMENT):
            assert block.kind == "python"
            exec(compile(block.text, str(DOCUMENT), "exec"), names)
        names["trials"] = names["study"].trials
        names["files"] = {path.name for path in Path().iterdir()}
        names["of_run"] = {path.name for path in Path("runs/first").iterdir()}
    return names


def test_what_is_written_is_what_the_page_says(names: dict[str, Any]) -> None:
    assert names["files"] == {"runs", "peer-3", "table.csv", "table.parquet", "table.tex"}
    assert names["of_run"] >= {"metrics.csv", "rounds.csv", "links.csv", "config.toml", "result.json"}
    said = DOCUMENT.read_text()
    assert all(f"`{name}`" in said for name in names["of_run"])


@pytest.mark.parametrize("kind", ["rounds", "peers", "links"])
def test_the_columns_of_frames_are_documented(names: dict[str, Any], kind: str) -> None:
    (line,) = (line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| `{kind}` |"))
    fixed = [name for name in names["opened"].frame(kind) if not name.endswith(MEASURED)]
    assert all(f"`{name}`" in line for name in fixed)


@pytest.mark.parametrize("file", ["metrics.csv", "peers.csv", "rounds.csv", "links.csv"])
def test_the_columns_of_records_are_documented(names: dict[str, Any], file: str, tmp_path: Path) -> None:
    (line,) = (line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| `{file}` |"))
    coterie.simulate("d-psgd", **{**names["small"], "rounds": 1}, run_dir=tmp_path / "run")
    header = (tmp_path / "run" / file).read_text().partition("\n")[0].split(",")
    fixed = [name for name in header if not name.endswith(MEASURED)]
    classes = {f"class {number}" for number in range(1, 10)}  # the page names the first
    assert all(f"`{name}`" in line for name in fixed if name not in classes)


def test_the_saved_model_is_peer_3(names: dict[str, Any]) -> None:
    outputs = names["module"](names["x"]).double().softmax(1)
    assert outputs.allclose(names["probabilities"], atol=1e-6)
    assert names["opened"].finished


def test_the_study_is_that_of_the_search(names: dict[str, Any]) -> None:
    assert len(names["trials"]) == 5
    objectives = {
        trial.user_attrs["objective"] for trial in names["trials"] if trial.state.name == "COMPLETE"
    }
    assert objectives == {"validation"}


def test_the_observer_ended_its_run(names: dict[str, Any]) -> None:
    assert names["run"].stopped == "0.3 reached"
    assert float(names["run"].personal_scores.mean()) >= 0.3
