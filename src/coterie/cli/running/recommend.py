"""`coterie recommend`: which algorithm, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie.cli.options import Asked, experiment_options
from coterie.cli.output import Json, print_json
from coterie.experiments.setup.config import refuse_unknown_words
from coterie.experiments.setup.recommending import Wishes
from coterie.experiments.setup.recommending import recommend as recommended


@experiment_options(without=("algorithm", "preset"))
def recommend(
    asked: Asked,
    *,
    sealed: Annotated[bool, typer.Option("--sealed", help="Nobody may see a single peer's model.")] = False,
    free_running: Annotated[
        bool, typer.Option("--free-running", help="Real peers go at their own pace.")
    ] = False,
    one_model: Annotated[
        bool, typer.Option("--one-model", help="One model for all, not one for each.")
    ] = False,
    json: Json = False,
) -> None:
    """Say which algorithm to take for an experiment, and why."""
    table = asked.table()
    table.pop("algorithm", None)
    refuse_unknown_words(table)
    advice = recommended(table, Wishes(sealed, free_running, one_model))
    if json:
        print_json({"algorithm": advice.algorithm, "settings": advice.settings, "reason": advice.reason})
        return
    typer.echo(f"{advice.written}: {advice.reason}")
