"""Every block of README, CONTRIBUTING and docs is carried out, or marked as output.

A block without a kind holds commands. `coterie` commands run here, in the order of their page and in one
folder: with fewer rounds and seeds than the page has, so that all of them take a moment. Those that start
processes, serve, or take many minutes are parsed by the command line's own parser instead, and so are those
with a place to fill in (`runs/...`, FOLDER). `make` targets and extras of `pip install` must exist. Pages in
`OF_THEIR_OWN` have tests that run each of their blocks as it stands. A block of kind `text` is output, and
holds no command.
"""

from __future__ import annotations

import gzip
import re
import struct
import tomllib
from pathlib import Path
from typing import Any

import documents
import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

import coterie
from coterie import catalogue
from coterie.algorithms.random_gossip import RandomGossip
from coterie.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KINDS = {"", "text", "python", "toml"}
OF_THEIR_OWN = {
    "own-algorithm.md": "test_own_algorithm.py",
    "own-data.md": "test_own_data_and_model.py",
    "own-model.md": "test_own_data_and_model.py",
    "tasks.md": "test_own_data_and_model.py",
    "results.md": "test_results.py",
    "tutorial.md": "test_tutorial.py",
}
RUN = {"run", "compare", "sweep", "data", "list", "explain", "new", "doctor", "runs", "ca"}
RUN_OF_A_PEER = {"init", "card", "trust", "roster", "rotate", "distrust", "request", "install"}
FEWER = {"--rounds": "1", "--seeds": "2", "--optuna": "2", "--jobs": "1"}
ELSEWHERE = {"systemctl", "journalctl", "curl"}  # need a service that is going on
TO_FILL_IN = re.compile(r"\.\.\.|\b[A-Z]{4,}\b")
PROGRAM = re.compile(r"^(\$ |coterie [a-z]|make [a-z]|pip install|python \S+\.py)")


def commands_of(page: Path) -> list[documents.Shown]:
    return [shown for block in documents.blocks(page) for shown in documents.commands(block)]


WITH_COMMANDS = [page for page in PAGES if page.name not in OF_THEIR_OWN and commands_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_kind_that_says_what_it_is(page: Path) -> None:
    found = documents.blocks(page)
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(found), "a block must follow an empty line"
    for block in found:
        assert block.kind in KINDS, f"{block.kind}: mark output as text"
        if block.kind == "text":
            assert not [line for line in block.text.splitlines() if PROGRAM.match(line)], block.text
        elif block.kind == "toml":
            tomllib.loads(block.text)
        elif block.kind == "python":
            compile(f"{{{block.text}}}" if block.place else block.text, page.name, "exec")  # lines of a dict
        else:
            assert documents.commands(block), block.text


@pytest.mark.parametrize(("page", "test"), OF_THEIR_OWN.items())
def test_pages_with_tests_of_their_own_have_them(page: str, test: str) -> None:
    assert page in (Path(__file__).parent / test).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader would try the page: with the files that it speaks of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    monkeypatch.setattr(catalogue.algorithms, "_factories", dict(catalogue.algorithms._factories))
    for block in documents.blocks(ROOT / "docs" / "own-algorithm.md"):
        if block.file in ("own.py", "experiment.toml"):
            (tmp_path / block.file).write_text(block.text)
    (ward,) = (block for block in documents.blocks(ROOT / "docs" / "peers.md") if block.kind == "toml")
    (tmp_path / "ward.toml").write_text(ward.text)
    (tmp_path / "own.toml").write_text(ward.text)
    (tmp_path / "ward0.npz").touch()
    fashion(tmp_path / "DATA" / "fashion-mnist")
    (wards,) = (block for block in documents.blocks(ROOT / "docs" / "tutorial.md") if block.file)
    exec(compile(wards.text, wards.file, "exec"), {})
    return tmp_path


def fashion(folder: Path) -> None:
    """Data in the format of Fashion-MNIST, made up."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, size in (("train", 600), ("t10k", 120)):
        images, labels = (
            rng.integers(0, 256, (size, 28, 28), dtype=np.uint8),
            np.arange(size, dtype=np.uint8) % 10,
        )
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))


def invoke(arguments: list[str]) -> Any:
    return CliRunner().invoke(app, arguments, prog_name="coterie")


def others() -> None:
    """What comes from elsewhere on a page about peers: bob and his card, dave, and an authority's card."""
    for name in ("bob", "dave"):
        which = ["--number", "1", "--listen", "127.0.0.1:7401", "--experiment", "ward.toml"]
        made = invoke(["peer", "init", name, *which])
        assert made.exit_code == 0, made.output
    Path("bob.card").write_text(invoke(["peer", "card", "--dir", "bob"]).stdout)


def is_run(arguments: list[str]) -> bool:
    """Whether the command runs here; else it is parsed."""
    if TO_FILL_IN.search(" ".join(arguments).replace("DATA", "")) or "--resume" in arguments:
        return False
    words = [word for word in arguments if not word.startswith("-")]
    if words[0] == "peer":
        return words[1] in RUN_OF_A_PEER
    return words[0] in RUN or words == ["reproduce", "list"]


def smaller(arguments: list[str]) -> list[str]:
    """The same command with less to do."""
    if "stopping.patience=10" in arguments:  # it is about how many rounds it takes
        return arguments
    options = {"run": ["--rounds"], "compare": ["--rounds"], "sweep": ["--rounds", "--jobs"]}
    for option in options.get(arguments[0], []):
        if option not in arguments:
            arguments = [*arguments, option, FEWER[option]]
    values = [
        FEWER.get(option, value) for option, value in zip(["", *arguments[:-1]], arguments, strict=True)
    ]
    return [*values, "--no-plots"] if arguments[0] in ("run", "compare") else values


def parse(arguments: list[str]) -> None:
    """A command or an option that does not exist, or a value of a wrong kind, is an error."""
    command: Any = typer.main.get_command(app)
    name, context = "coterie", None
    while True:
        context = command.make_context(name, list(arguments), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize(
    "wrong",
    [["nosuch"], ["run", "--bogus"], ["peer", "run", "--dirr", "x"], ["swarm", "--peers", "x"], ["report"]],
    ids=" ".join,
)
def test_the_parser_refuses_what_does_not_exist(wrong: list[str]) -> None:
    with pytest.raises(typer.BadParameter.__bases__[0]):  # a mistake in usage
        parse(wrong)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_runs_or_is_understood(page: Path, folder: Path) -> None:
    if page.name in ("peers.md", "README.md"):
        others()
    for shown in commands_of(page):
        program, *arguments = shown.arguments
        if program == "coterie":
            carry_out(shown, arguments)
        elif program == "make":
            targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            assert set(arguments) <= targets
        elif program == "pip":
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(re.findall(r"\[([\w,-]+)\]", arguments[-1])) <= set(known)
        elif program == "python":
            assert (ROOT / arguments[0]).is_file()
        else:
            assert program in ELSEWHERE, f"who runs {program}?"


@pytest.mark.parametrize("name", ["README.md", "docs/start.md"])
def test_the_first_lines_of_python_run(name: str, folder: Path) -> None:
    """With fewer rounds and seeds, and with something for the names that stand for a reader's own."""
    (block,) = (block for block in documents.blocks(ROOT / name) if block.kind == "python")
    coterie.simulate("d-psgd", peers=4, rounds=1, run_dir="runs/first")
    text = block.text.replace("peers=20, rounds=20", "rounds=20").replace("rounds=20, ", "")
    text = text.replace("seeds=3", "seeds=2, rounds=1").replace("runs/...", "runs/first")
    x, y = torch.rand(12, 4), torch.arange(12) % 2
    own: dict[str, Any] = {
        "MyAlgorithm": RandomGossip,
        "MyModule": nn.Linear(4, 2),
        "x": torch.rand(2, 1, 8, 8),
    }
    own |= {f"x{number}": x for number in (1, 2, 3)} | {f"y{number}": y for number in (1, 2, 3)}
    exec(compile(text, name, "exec"), own)
    assert (folder / "table.tex").is_file()


def carry_out(shown: documents.Shown, arguments: list[str]) -> None:
    target = None
    if ">" in arguments:
        place = arguments.index(">")
        arguments, target = arguments[:place], Path(arguments[place + 1])
    if not is_run(arguments):
        return parse(arguments)
    done = invoke(smaller(arguments))
    refused = any(line.startswith("error:") for line in shown.lines)
    assert (done.exit_code != 0) == refused, done.output
    missing = set(shown.missing_from(done.output)) - {"kB", "MB"}  # there are fewer rounds
    assert missing == set(), done.output
    if target is not None:
        target.write_text(done.stdout)
