"""What is read of the catalogues without PyTorch is what they say."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest

from coterie.cli.blueprints import REAL, catalogues

KINDS = [field.name for field in fields(REAL)]
ENTRIES = [(kind, name) for kind in KINDS for name in getattr(REAL, kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_names_as_in_the_real_catalogues(kind: str) -> None:
    assert set(getattr(catalogues(), kind)) == set(getattr(REAL, kind))


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_the_same_signatures_and_descriptions(kind: str, name: str) -> None:
    read, real = getattr(catalogues(), kind), getattr(REAL, kind)
    assert read.kind == real.kind
    assert read.signature(name) == real.signature(name)
    assert read.summary(name) == real.summary(name)
    assert is_dataclass(read[name]) == is_dataclass(real[name])
    for attribute in ("presets", "default_model", "default_partition", "needs_files"):
        if hasattr(real[name], attribute):
            assert getattr(read[name], attribute) == getattr(real[name], attribute)
    if kind == "algorithms":
        assert vars(read[name].facts) == vars(real[name].facts)
