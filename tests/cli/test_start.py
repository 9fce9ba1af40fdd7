"""What a command does not need it does not wait for."""

from __future__ import annotations

import subprocess
import sys

_SLOW = ("networkx", "matplotlib", "scipy", "sympy", "pandas", "polars", "ray", "sklearn", "transformers")


def test_a_run_begins_without_what_only_some_need() -> None:
    """Plots come at the end, and graphs of networkx from those who have imported it."""
    said = f"import sys, coterie.cli.running.simulating; print([n for n in {_SLOW} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
