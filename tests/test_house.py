"""The house stays easy to walk through: short ways, few detours, rooms seen at a glance, a true picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import house

MANY_FILES = {
    "algorithms": "one file per method",
    "coterie": "foundations and leaves that are single files",
}
"""Rooms that may have more than twelve files, and why."""


def test_a_round_passes_through_few_files() -> None:
    """From the engine's step to its records; the loop that calls both is not counted."""
    walk = house.files_of_a_round()
    assert {"simulation/engine.py", "algorithms/dfedpgp.py", "experiments/runs/records.py"} <= walk
    assert len(walk - {house.LOOP}) <= house.LIMITS["files of a round"], sorted(walk)


def test_a_parcel_passes_through_few_files() -> None:
    walk = house.files_of_a_parcel()
    assert {"peer/exchange/post.py", "peer/exchange/mailbox.py"} <= walk
    assert len(walk) <= house.LIMITS["files of a parcel"], sorted(walk)


def test_methods_hardly_import_each_other() -> None:
    found = house.between_algorithms()
    assert len(found) <= house.LIMITS["imports between algorithms"], found


def test_few_imports_wait_in_functions() -> None:
    found = house.inside_functions()
    assert len(found) <= house.LIMITS["imports inside functions"], found


def test_rooms_can_be_taken_in_at_a_glance() -> None:
    files = Counter(path.parent for path in house.FILES if path.name != "__init__.py")
    crowded = {house.module_name(folder).removeprefix("coterie.") for folder, n in files.items() if n > 12}
    assert crowded <= MANY_FILES.keys()


def test_the_picture_shows_these_rooms() -> None:
    stored = Path(__file__).parents[1] / "docs" / "architecture.svg"
    assert stored.read_text() == house.picture(), "run: python tests/house.py --picture docs/architecture.svg"


def test_every_room_of_the_picture_exists() -> None:
    for room in house.ROOMS - {"coterie"}:
        place = house.PACKAGE.joinpath(*room.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), room


def test_an_import_inside_a_function_is_found() -> None:
    assert not [found for found in house.inside_functions() if found.startswith("coterie.errors")]
    tree = house.ast.parse("def late():\n    import torch\n    from coterie import errors\n")
    assert [name for _, name in house.imports_of(tree, "coterie")] == ["torch", "coterie.errors"]
