"""What `sweep` and `reproduce` do once their cells are known. Imports PyTorch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from coterie.cli.output import Output, print_json
from coterie.cli.problems import note
from coterie.cli.running.progress import CellProgress
from coterie.experiments.cells.cell import Cell
from coterie.experiments.cells.comparing import MakeTable
from coterie.experiments.cells.paper_schema import Scale
from coterie.experiments.cells.reproducing import Reproducible, chosen
from coterie.experiments.cells.sweeping import once, plan_cells
from coterie.experiments.cells.working_off import CellRunner
from coterie.experiments.runs.naming import CELLS
from coterie.learning import cores
from coterie.metric import Metric
from coterie.reporting import comparison, reproduction, reproduction_text
from coterie.reporting.page.report import leave_report
from coterie.reporting.tables import in_bytes, show
from coterie.reporting.work import SIGN, said_below
from coterie.results.exports import Column, Sheet, joined
from coterie.results.reproduction import sheets_of
from coterie.results.search import STUDY, parse_space, said_of_best, search
from coterie.results.sweep import Sweep, run_cells

_IN_THE_SHEET = ("results", "summary")  # the others follow it in LaTeX


def work_off(title: str, cells: list[Cell], folder: Path, jobs: int | None, quiet: bool) -> dict[str, str]:
    """Run the cells that are not finished; the messages of those that broke, by their names."""
    with CellProgress(title, cells, quiet) as progress:
        return dict(run_cells(cells, folder, jobs=jobs or cores(), notify=progress).broken)


def reproduce_all(
    plans: list[tuple[Reproducible, list[Cell]]],
    scale: Scale,
    out: Path,
    *,
    only: list[str],
    jobs: int | None,
    tables_only: bool,
    output: Output,
) -> list[reproduction.Reproduction]:
    """Each table or figure: run its cells, unless only tables are wanted, and write it."""
    finished = []
    largest = max((len(cells) for _, cells in plans), default=0)  # more processes than that would be idle
    with _runner(out, jobs, largest) as runner:
        if not tables_only:
            runner.check(cell for _, cells in plans for cell in chosen(cells, only))
        for one, cells in plans:
            if not tables_only:
                todo = chosen(cells, only)
                with CellProgress(one.name, todo, output.quiet) as progress:
                    runner.work_off(todo, progress)
            finished.append(_report_one(one, scale, cells, out, output))
    if output.json:
        print_json([reproduction_text.as_json(one) for one in finished])
    output.export(joined([pair for one in finished for pair in sheets_of(one)]))
    return finished


def _runner(folder: Path, jobs: int | None, cells: int) -> CellRunner:
    """One process for each core, unless the user says otherwise, and no more than cells."""
    return CellRunner(folder / CELLS, max(1, min(jobs or cores(), cells)))


def _report_one(
    one: Reproducible, scale: Scale, cells: list[Cell], out: Path, output: Output
) -> reproduction.Reproduction:
    done = reproduction.assemble(one.name, one.table, scale, cells, out / CELLS)
    folder = out / one.name / scale
    paths = reproduction_text.write(done, folder)[:1]
    if output.plots:
        from coterie.reporting import reproduction_plots  # Matplotlib, which not everyone wants to wait for

        paths += reproduction_plots.draw(done, folder)
    if report := leave_report(folder):
        paths.append(report)
    if not output.json:
        reproduction_text.print_tables(done)
    for path in paths:
        note(f"written: {path}", output.quiet)
    return done


def search_and_report(
    make_table: MakeTable, over: list[str], seeds: int, out: Path | None, trials: int, output: Output
) -> None:
    """Let Optuna choose the values; then the tables, as of a sweep."""
    space, say = [parse_space(text) for text in over], partial(note, quiet=output.quiet)
    plan = partial(plan_cells, make_table, seeds=seeds, say=once(say))
    done = search(space, plan, out, trials=trials, say=say)
    report_sweep(list(done.cells), done.folder, None, None, None, output)
    say(said_of_best(done))
    say(f"study: {done.folder / STUDY}")


def report_sweep(
    cells: list[Cell],
    folder: Path,
    compare: tuple[str, str] | None,
    target: float | None,
    select: comparison.Chooser | None,
    output: Output,
) -> list[comparison.Swept]:
    """The sweep's tables, in its folder and on stdout."""
    done, quiet = Sweep(cells, folder), output.quiet
    swept = done.swept
    by = comparison.chooser(swept, select)
    tables = {"results": comparison.tidy(swept), "summary": comparison.summary(swept)}
    if compare is not None:
        tables["comparison"] = comparison.compare(swept, *compare)
    if target is not None:
        tables["targets"] = comparison.to_target(swept, target)
    if best := comparison.chosen(swept, by):
        tables["chosen"] = best
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in tables.items():
        note(f"written: {comparison.write_csv(lines, folder / f'{name}.csv')}", quiet)
    parquet = comparison.write_parquet(tables["results"], folder / "results.parquet")
    if parquet is None:
        note("note: no results.parquet; for that install polars, or pandas and pyarrow", quiet)
    else:
        note(f"written: {parquet}", quiet)
    others = [_latex(name, lines, swept, by) for name, lines in tables.items() if name not in _IN_THE_SHEET]
    output.export(replace(done.sheet(), more="".join(f"\n{text}" for text in others)))
    if report := leave_report(folder):
        note(f"written: {report}", quiet)
    if output.json:
        print_json(tables)
        return swept
    for name, lines in tables.items():
        if name != "results":
            show(_shown(name, lines, swept, by), "")
    for one in swept:
        if one.error is not None:
            show(f"broken: {one.cell.describe()}: {one.error}")
    return swept


def _shown(
    name: str, lines: list[dict[str, Any]], swept: list[comparison.Swept], by: comparison.Chooser
) -> Table:
    percent = comparison.in_percent(swept)
    title = _title(name, swept, by)
    table = Table(title=title, box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    columns = list(lines[0]) if lines else []
    for column in columns:
        table.add_column(column, justify="right" if isinstance(lines[0][column], float) else "left")
    marks = comparison.trained_otherwise(lines) if name == "summary" else [False] * len(lines)
    for line, mark in zip(lines, marks, strict=True):
        texts = {column: _text(name, column, line[column], percent) for column in columns}
        if mark:
            texts["steps_per_peer"] += SIGN
        table.add_row(*(Text(text) for text in texts.values()))
    if any(marks):
        table.caption = said_below("those of Local, or of the median where Local was not run,")
    return table


def _title(name: str, swept: list[comparison.Swept], by: comparison.Chooser) -> str:
    metric, percent = comparison.main_metric(swept), comparison.in_percent(swept)
    direction = "" if metric.higher_is_better else f"; {metric.better}"
    titles = {
        "summary": f"Mean over seeds with Student's 95 % interval ({metric.unit}{direction})",
        "comparison": "Paired differences on the same seeds and splits, with their 95 % interval"
        f" ({'points' if percent else metric.title}{direction})",
        "targets": f"Until the mean personal {metric.title} reaches the target",
        "chosen": comparison.choice_said(by, metric),
    }
    work = "" if name == "chosen" else comparison.work_said(swept)
    return "\n".join(part for part in (titles[name], work) if part)


def _latex(
    name: str, lines: list[dict[str, Any]], swept: list[comparison.Swept], by: comparison.Chooser
) -> str:
    """A table beside the summary, as it is shown."""
    percent = comparison.in_percent(swept)
    heads = list(lines[0]) if lines else []
    columns = [Column(head, [_text(name, head, line[head], percent) for line in lines]) for head in heads]
    return Sheet(lines, columns, _title(name, swept, by)).latex()


def _text(table: str, column: str, value: Any, percent: bool) -> str:
    if value is None:
        return "-"
    if column.startswith("bytes"):
        return in_bytes(value)
    if not isinstance(value, float):
        return str(value)
    if column == "steps_per_peer":
        return f"{value:.0f}"
    if table == "targets":
        return f"{value:g}" if column == "target" else f"{value:.1f}"
    signed = table == "comparison" and column != "std"  # a difference has a direction, its spread has none
    return Metric("", percent=percent).text(value, signed=signed, digits=2)
