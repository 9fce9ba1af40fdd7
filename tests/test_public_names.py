"""The public names are few, and each of them exists."""

import subprocess
import sys
from types import ModuleType

import coterie


def test_every_public_name_exists_and_stays_the_same() -> None:
    """A name that is a folder of the package too would become that folder once it is imported."""
    coterie.simulate(rounds=1, peers=2, topology="ring", execution={"executor": "stacked"})
    for name in coterie.__all__:
        found = getattr(coterie, name)
        assert not isinstance(found, ModuleType), name
        assert getattr(coterie, name) is found, name


def test_public_names_are_shown_before_they_are_used() -> None:
    code = (
        "import coterie, sys; assert set(coterie.__all__) <= set(dir(coterie)) and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_are_few_and_listed_once() -> None:
    assert len(coterie.__all__) <= 40
    assert len(set(coterie.__all__)) == len(coterie.__all__)
