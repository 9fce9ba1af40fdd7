"""`coterie new DIR`: an experiment that the user owns, with their algorithm, their model and their data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import RunFolderError

_TOML = """\
# Run it:                  coterie run --config {folder}/experiment.toml
# Change something once:   coterie run --config {folder}/experiment.toml --rounds 50 --set training.lr=0.1
# Compare algorithms:      coterie compare --config {folder}/experiment.toml \\
#                              --algorithms "{folder}/experiment.py:Mine(0.3),d-psgd,fedavg"
# All names:               coterie list
# Paths start from this file's folder. A name of the list may stand wherever experiment.py does.

algorithm = "experiment.py:Mine(share=0.3)"
data = "experiment.py:load_data"
model = "experiment.py:Net(hidden=32)"
partition = "dirichlet(0.5)"
topology = "ring"
peers = 8
rounds = 20
seed = 0

[training]
epochs = 1
batch_size = 16
lr = 0.1
"""

_PYTHON = '''\
"""Your algorithm, your model and your data. Replace what you like; `experiment.toml` names them."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

import coterie


@dataclass(frozen=True)
class Mine(coterie.ModelAlgorithm):
    """Train, then move a share of the way to the neighbours' average.

    theta_i <- y_i + share (mean_j y_j - y_i)

    The fields are the hyper-parameters. `help(coterie.Node)` shows what a node offers. Every tensor has a
    leading axis of rows: all peers in the simulator, one in a real peer.
    """

    share: float = 0.5  # of the way to the average

    facts = coterie.Facts(paper="mine", measured="after_mixing", communication="one model per link")

    def round(self, state: coterie.ModelState, node: coterie.Node) -> coterie.Round[coterie.ModelState]:
        mine = node.train(state.params)
        node.measure(after_local=mine)
        inbox = yield coterie.Exchange(mine)  # to the neighbours of this round
        mean = coterie.average(mine, inbox)
        return coterie.ModelState({name: y + self.share * (mean[name] - y) for name, y in mine.items()})


def load_data(peers: int, seed: int) -> coterie.Source:
    """Samples and labels, to be split among the peers by the partition in experiment.toml.

    Peers that already have their own data: return `coterie.from_peers([(x, y), (x, y), ...])`, and
    leave out the partition.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(4, 10))  # 4 classes of points with 10 features
    y = rng.integers(0, 4, size=2000)
    x = centres[y] + rng.normal(size=(2000, 10))
    return coterie.from_arrays(x, y, seed=seed)


class Net(nn.Module):
    """Any module that returns logits, one for each class. Coterie gives `shape` and `n_classes`."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(int(np.prod(shape)), hidden), nn.ReLU(), nn.Linear(hidden, n_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
'''

_README = """\
# {name}

    coterie run --config experiment.toml          # run it; records and plots go to runs/
    coterie data show --config experiment.toml    # who has which labels
    coterie compare --config experiment.toml --algorithms "experiment.py:Mine(0.3),d-psgd,fedavg"
    coterie sweep experiment.toml --over "algorithm=experiment.py:Mine(0.1),experiment.py:Mine(0.9)"
    coterie explain experiment.py:Mine            # what its docstring and its fields say
    coterie swarm --config experiment.toml        # the same between real peers on this machine

`experiment.toml` says what is run, `experiment.py` holds the algorithm, the model and the data.
`coterie list` shows all names that may stand in their places, `coterie explain NAME` tells more about one.
"""


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
) -> None:
    """Start an experiment of your own: a TOML file, and a Python file with algorithm, model and data."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists already and is not empty; choose another folder")
    name = folder.resolve().name
    files = {"experiment.toml": _TOML, "experiment.py": _PYTHON, "README.md": _README}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            text = text.replace("{folder}", shlex.quote(str(folder))).replace("{name}", name)
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    typer.echo(f"{folder} holds experiment.toml, experiment.py and README.md. Run it with:")
    typer.echo(f"  coterie run --config {shlex.quote(str(folder / 'experiment.toml'))}")
