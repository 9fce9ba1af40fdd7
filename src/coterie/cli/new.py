"""`coterie new DIR`: an experiment that the user owns, with their model and their data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import RunFolderError

_TOML = """\
# Run it:                  coterie run --config {folder}/experiment.toml
# Change something once:   coterie run --config {folder}/experiment.toml --rounds 50 --set training.lr=0.1
# Compare algorithms:      coterie compare --config {folder}/experiment.toml --algorithms d-psgd,fedavg
# All names:               coterie list
# Paths start from this file's folder.

algorithm = "d-psgd"
data = "experiment.py:load_data"
model = "experiment.py:Net"
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
"""Your data and your model. Replace both; `experiment.toml` names them."""

import numpy as np
from torch import Tensor, nn

import coterie


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
    """Any module that returns logits, one for each class."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(int(np.prod(shape)), 32), nn.ReLU(), nn.Linear(32, n_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
'''

_README = """\
# {name}

    coterie run --config experiment.toml          # run it; records and plots go to runs/
    coterie data show --config experiment.toml    # who has which labels
    coterie compare --config experiment.toml --algorithms d-psgd,random-gossip,fedavg

`experiment.toml` says what is run, `experiment.py` holds the data and the model. `coterie list` shows all
names that the TOML file may use, `coterie explain NAME` tells more about one.
"""


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
) -> None:
    """Start an experiment of your own: a TOML file, and a Python file with your model and data."""
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
