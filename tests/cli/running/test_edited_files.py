"""Results are those of the files as they are now, or it is said that they are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
# The second answers the same class whatever it sees: a tenth of the digits, give or take, is right.
NETWORKS = {
    "learns": "return self.linear(x.flatten(1))",
    "guesses": "return self.linear(x.flatten(1)) * 0 + torch.eye(10)[0]",
}


def write_network(folder: Path, kind: str) -> None:
    (folder / "answers.py").write_text(
        f"import torch\n\n\ndef answer(self, x):\n    {NETWORKS[kind]}\n", encoding="utf-8"
    )
    (folder / "net.py").write_text(
        "from torch import nn\n\nimport answers\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(64, 10)\n\n"
        "    def forward(self, x):\n        return answers.answer(self, x)\n",
        encoding="utf-8",
    )


@pytest.fixture
def own(folder: Path) -> list[str]:
    write_network(folder, "learns")
    return [
        "--data",
        "digits",
        "--model",
        "net.py:Net",
        "--peers",
        "4",
        "--rounds",
        "8",
        "--executor",
        "looped",
    ]


def test_a_sweep_after_editing_the_network_shows_the_new_one(
    coterie: Command, own: list[str], folder: Path
) -> None:
    def swept() -> list[float]:
        done = coterie("sweep", *own, "--over", "algorithm=local", "--jobs", "1", "--out", "s", "--json")
        assert done.exit_code == 0, done.stderr
        return [line["personal_accuracy"] for line in json.loads(done.stdout)["results"]]

    learned = swept()
    write_network(folder, "guesses")
    guessed = swept()
    assert learned[0] > 0.5 > 0.3 > guessed[0]
    write_network(folder, "learns")
    assert swept() == learned  # found again


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_run_is_not_resumed_with_another_network(
    coterie: Command, own: list[str], folder: Path, command: str
) -> None:
    algorithms = ["--algorithms", "local"] if command == "compare" else []
    done = coterie(command, *algorithms, *own, "--rounds", "2", "--run-dir", "r", "--no-plots")
    assert done.exit_code == 0, done.stderr
    write_network(folder, "guesses")
    refused = coterie(command, "--resume", "r", "--no-plots")
    assert refused.exit_code == 2
    assert "answers.py changed since the run in r" in refused.stderr
    write_network(folder, "learns")
    assert coterie(command, "--resume", "r", "--no-plots").exit_code == 0


def test_a_table_after_editing_the_network_shows_the_new_one(
    coterie: Command, own: list[str], folder: Path
) -> None:
    """`reproduce` with a table of one's own: old cells stay, and are found again after an undone edit."""
    (folder / "table.toml").write_text(
        'title = "t"\nsource = "s"\nshows = "s"\nsetting = "s"\n'
        '[experiment]\ndata = "digits"\nmodel = "net.py:Net"\npeers = 4\nrounds = 8\n'
        'execution = { executor = "looped" }\n[scales]\nsmoke = {}\nlaptop = {}\npaper = {}\n'
        '[[columns]]\nname = "c"\n[[rows]]\nname = "local"\n'
    )

    def reproduced() -> float:
        done = coterie("reproduce", "table.toml", "--jobs", "1", "--out", "o", "--no-plots", "--json")
        assert done.exit_code == 0, done.stderr
        lines = json.loads(done.stdout)[0]["tables"][0]["lines"]
        return next(float(line[1].split()[0]) for line in lines if line[0] == "local")

    learned = reproduced()
    write_network(folder, "guesses")
    guessed = reproduced()
    assert learned > 50 > 30 > guessed
    write_network(folder, "learns")
    assert reproduced() == learned
