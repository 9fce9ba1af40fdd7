"""What `file.py:name` stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.data.own.code import call_for_data
from coterie.errors import ConfigError, DataError
from coterie.registry import load_reference
from coterie.user_code import is_file_reference, split_reference


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nets.py:Small", ("nets.py", "Small")),
        ("/a b/c.d/nets.py:Small", ("/a b/c.d/nets.py", "Small")),
        ("nets.py", ("nets.py", "")),
        ("nets.py:", ("nets.py", "")),
    ],
)
def test_references_have_a_file_and_a_name(text: str, parts: tuple[str, str]) -> None:
    assert is_file_reference(text)
    assert split_reference(text) == parts


@pytest.mark.parametrize("text", ["mlp", "mlp(64)", "", "share", "data.npz", "numpy", ".py", "edges(a.csv)"])
def test_other_texts_are_no_references(text: str) -> None:
    assert not is_file_reference(text)


def test_mistakes_say_what_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("number = 3\ndef load(a, b):\n    return a + b\ndef fails():\n    raise SystemExit(3)\n")
    assert load_reference(f"{file}:number", "data") == 3
    assert call_for_data(f"{file}:load", {"peers": 1, "seed": 2}) == 3
    with pytest.raises(ConfigError, match=r"model '.*' must name a class or function: .*mine\.py:load"):
        load_reference(str(file), "model")
    with pytest.raises(ConfigError, match=r"data '.*': .*mine\.py defines no laod; did you mean load"):
        load_reference(f"{file}:laod", "data")
    with pytest.raises(ConfigError, match=r"number in .*mine\.py is 3, not a function"):
        call_for_data(f"{file}:number", {})
    with pytest.raises(DataError, match=r"fails in .*mine\.py raised SystemExit: 3 \(line 5\)"):
        call_for_data(f"{file}:fails", {})
    with pytest.raises(ConfigError, match=r"load'.*missing a required argument: 'a'; its arguments are"):
        call_for_data(f"{file}:load", {})
    with pytest.raises(ConfigError, match="there is no file"):
        load_reference(f"{tmp_path}/other.py:x", "data")


def test_a_file_is_executed_once_per_version(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("made = object()\n")
    first = load_reference(f"{file}:made", "data")
    assert load_reference(f"{file}:made", "data") is first
    file.write_text("made = object()  # edited\n")
    assert load_reference(f"{file}:made", "data") is not first


def test_files_of_two_folders_have_neighbours_of_their_own(tmp_path: Path) -> None:
    """Both import `beside` and the package `tools`, each from its own folder, in one process."""
    for name in ("a", "b"):
        (tmp_path / name / "tools").mkdir(parents=True)
        (tmp_path / name / "beside.py").write_text(f"VALUE = {name!r}\n")
        (tmp_path / name / "tools" / "__init__.py").write_text(f"TOOL = {name!r}\n")
        (tmp_path / name / "mine.py").write_text(
            "import beside\nfrom tools import TOOL\nfound = beside.VALUE + TOOL\n"
        )
    found = [load_reference(f"{tmp_path}/{name}/mine.py:found", "data") for name in ("a", "b", "a")]
    assert found == ["aa", "bb", "aa"]
