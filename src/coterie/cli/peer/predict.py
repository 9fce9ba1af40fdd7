"""`coterie peer predict`: use the personal model on a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.peer.cards import Folder
from coterie.cli.problems import note
from coterie.errors import DataError
from coterie.files import write_atomically
from coterie.peer.trust.settings import load_settings

Data = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="An .npz file with x, or a .csv file of features.", show_default=False
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write the predictions to this file.", metavar="CSV", show_default="stdout"),
]


def predict(file: Data, folder: Folder = Path(), out: Out = None) -> None:
    """Predict classes with the peer's personal model; with labels, also say how many are right."""
    load_settings(folder)  # what is wrong with files is found before PyTorch is imported
    if not file.is_file():
        raise DataError(f"there is no file {file}")

    import torch

    from coterie.experiments.real_peers.predicting import personal_model, samples_for

    torch.set_num_threads(1)
    model = personal_model(folder)
    x, y = samples_for(model, file)
    best = model.probabilities(x).max(dim=1)
    table = _csv(best.indices.tolist(), best.values.tolist(), None if y is None else y.tolist())
    said = f"{len(best.indices)} samples, model of {model.name} after {model.round} rounds"
    if y is not None:
        right = (best.indices.numpy() == y).mean()
        said += f", accuracy {right:.4f}"
    if out is None:
        typer.echo(table, nl=False)
        note(said)
    else:
        write_atomically(out, table.encode())
        typer.echo(f"{said}; predictions: {out}")


def _csv(classes: list[int], probabilities: list[float], labels: list[int] | None) -> str:
    """row,class,probability and, if known, label"""
    columns: list[list[Any]] = [[*range(len(classes))], classes, [f"{p:.6f}" for p in probabilities]]
    header = ["row", "class", "probability"]
    if labels is not None:
        columns, header = [*columns, labels], [*header, "label"]
    lines = [header, *zip(*columns, strict=True)]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)
