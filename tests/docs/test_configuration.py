"""docs/configuration.md is what the schema says now."""

from __future__ import annotations

import runpy
from pathlib import Path

from coterie.experiments.setup.schema import Experiment
from coterie.toml_tables import is_schema, keys

SCRIPT = Path(__file__).parents[2] / "docs" / "configuration.py"


def test_the_page_is_up_to_date() -> None:
    written = runpy.run_path(str(SCRIPT))["reference"]()
    assert SCRIPT.with_suffix(".md").read_text() == written, "run: python docs/configuration.py"


def test_every_key_is_on_the_page_once() -> None:
    lines = SCRIPT.with_suffix(".md").read_text().splitlines()
    shown = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert sorted(shown) == sorted(key.name for key in keys(Experiment) if not is_schema(key.kind))
