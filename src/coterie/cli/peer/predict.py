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
    """Predict with the peer's personal model; with labels, also say how good that is."""
    load_settings(folder)  # what is wrong with files is found before PyTorch is imported
    if not file.is_file():
        raise DataError(f"there is no file {file}")

    import torch

    from coterie.experiments.real_peers.predicting import personal_model, predicted, samples_for

    torch.set_num_threads(1)
    model = personal_model(folder)
    x, y = samples_for(model, file)
    outputs = model.outputs(x)
    table = _csv(predicted(model, outputs), {} if y is None else _columns("label", y.tolist()))
    said = f"{len(outputs)} samples, model of {model.name} after {model.round} rounds"
    if y is not None:
        said += f", {model.task.metrics[0].title} {model.score(outputs, y):.4f}"
    if out is None:
        typer.echo(table, nl=False)
        note(said)
    else:
        write_atomically(out, table.encode())
        typer.echo(f"{said}; predictions: {out}")


def _csv(predicted: dict[str, list[Any]], labels: dict[str, list[Any]]) -> str:
    """The row, what is predicted and, if known, the label."""
    rows = range(len(next(iter(predicted.values()))))
    columns = {"row": [*rows], **predicted, **labels}
    lines = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(",".join(map(str, line)) + "\n" for line in lines)


def _columns(name: str, values: list[Any]) -> dict[str, list[Any]]:
    """One column, or one for each of several values; whole numbers of a sequence stand in one."""
    if not isinstance(values[0], list):
        return {name: values}
    if all(isinstance(value, int) for value in values[0]):
        return {name: [" ".join(map(str, row)) for row in values]}
    if len(values[0]) == 1:
        return {name: [row[0] for row in values]}
    return {f"{name}_{place}": [row[place] for row in values] for place in range(len(values[0]))}
