"""`coterie peer init`: a new peer's folder, made whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie import toml_tables
from coterie.catalogue import algorithms
from coterie.cli.options import Asked
from coterie.cli.peer.cards import AuthorityFolder, authority_in
from coterie.cli.problems import note
from coterie.errors import ConfigError, RunFolderError
from coterie.experiments.setup.config import resolve
from coterie.peer.trust.authority import Authority
from coterie.peer.trust.cards import card_of_authority
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.names import check_name
from coterie.peer.trust.roster import ROSTER_FILE, Roster, roster_text
from coterie.peer.trust.settings import FIRST_PORT, SETTINGS_FILE, SHARE, PeerSettings, settings_text
from coterie.user_code import data_file_parts, is_file_reference, split_reference

_EXPERIMENT = """\
# What all peers run together: everyone's copy must say the same. Simulate it first:
#   coterie run --config experiment.toml
# All names: coterie list

algorithm = "d-psgd"
data = "digits"
model = "mlp(64)"
partition = "dirichlet(0.5)"
topology = "full"
peers = {peers}
rounds = 20
seed = 0

[training]
epochs = 1
batch_size = 16
lr = 0.1
"""
_EXAMPLE_PEERS = 3


def _optional(help: str, metavar: str) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=False)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The peer's name.", show_default=False)],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="A new folder.", metavar="DIR", show_default="NAME")
    ] = None,
    number: Annotated[int, typer.Option(min=0, help="The peer's place in the experiment, from 0.")] = 0,
    listen: Annotated[
        str | None,
        typer.Option(help="Where it listens.", metavar="HOST:PORT", show_default="127.0.0.1:7400 + number"),
    ] = None,
    address: Annotated[str | None, _optional("What others dial; default: --listen.", "HOST:PORT")] = None,
    experiment: Annotated[Path | None, _optional("The experiment's TOML file.", "FILE")] = None,
    data: Annotated[
        str,
        typer.Option(help="share, file.npz, file.csv or file.py:function.", metavar="DATA"),
    ] = "share",
    ca: AuthorityFolder = None,
) -> None:
    """Make a peer: its key and certificate, settings, and an empty roster."""
    folder = folder or Path(check_name(name))
    _refuse_existing(folder)
    settings = _new_settings(name, folder, number, listen, address, experiment, data)
    _check_number(settings, experiment)
    _note_missing_data(data)
    _make(folder, settings, authority_in(ca), example=experiment is None)
    typer.echo(_next_steps(folder, name, ca))


def _refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists already and is not empty; choose another folder with --dir")
    if folder.resolve() == Path.cwd():
        raise RunFolderError("the peer's folder must be a new one, not the current folder")


def _new_settings(
    name: str,
    folder: Path,
    number: int,
    listen: str | None,
    address: str | None,
    experiment: Path | None,
    data: str,
) -> PeerSettings:
    """Checked, and with paths as they are written in the folder's file."""
    file = "experiment.toml" if experiment is None else _seen_from(folder, experiment)
    table = {
        "name": name,
        "number": number,
        "listen": listen or f"127.0.0.1:{FIRST_PORT + number % 1000}",
        "address": address or "",
        "experiment": file,
        "data": data if data == SHARE else _seen_from(folder, Path(data)),
    }
    return toml_tables.validate(PeerSettings, table, "the new peer")


def _seen_from(folder: Path, path: Path) -> str:
    return os.path.relpath(path.expanduser().absolute(), folder.absolute())


def _check_number(settings: PeerSettings, experiment: Path | None) -> None:
    """The experiment must be valid and have a place of this number."""
    if experiment is None:
        if settings.number >= _EXAMPLE_PEERS:
            raise ConfigError(
                f"--number {settings.number}: the example experiment has {_EXAMPLE_PEERS} peers, from 0; "
                "name your own with --experiment"
            )
        return
    checked = resolve(Asked(config=experiment).table())
    facts = algorithms[checked.algorithm].facts  # type: ignore[attr-defined]
    if settings.number >= checked.peers + facts.hub:
        last = f"{checked.peers - 1}" + (f", or {checked.peers} for the hub" if facts.hub else "")
        raise ConfigError(f"--number {settings.number}: the peers of {experiment} are 0 to {last}")


def _note_missing_data(data: str) -> None:
    if data == SHARE:
        return
    named = split_reference(data)[0] if is_file_reference(data) else data_file_parts(data)[0]
    file = Path(named).expanduser()
    if not file.is_file():
        note(f"note: there is no file {file} yet")


def _make(folder: Path, settings: PeerSettings, authority: Authority | None, example: bool) -> None:
    """Everything is made in a folder beside, which then gets its name: there is all of it or nothing."""
    parent = folder.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=parent))  # mode 700
    except OSError as error:
        raise RunFolderError(f"cannot write in {parent}: {error.strerror}") from None
    try:
        (beside / SETTINGS_FILE).write_text(settings_text(settings), encoding="utf-8")
        (beside / ROSTER_FILE).write_text(roster_text(), encoding="utf-8")
        if example:
            (beside / "experiment.toml").write_text(
                _EXPERIMENT.format(peers=_EXAMPLE_PEERS), encoding="utf-8"
            )
        if authority is not None:
            Roster.load(beside).add(card_of_authority(authority))
        Identity.create(beside, settings.name, authority=authority)
        os.rename(beside, folder)
    except OSError as error:
        raise RunFolderError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    finally:  # also after Ctrl-C
        shutil.rmtree(beside, ignore_errors=True)


def _next_steps(folder: Path, name: str, ca: Path | None) -> str:
    signed = "" if ca is None else f" signed by {ca}"
    return "\n".join(
        [
            f"{folder} holds peer.toml, roster.toml and identity.pem.",
            f"Keep identity.pem secret: it is the key, with a certificate{signed}. Next:",
            f"  1. Look through {folder}/peer.toml and the experiment that it names.",
            f"  2. Send your card to the others:   coterie peer card --dir {folder} > {name}.card",
            f"  3. Add each card that you get:     coterie peer trust CARD --dir {folder}",
            f"  4. Learn with them:                coterie peer run --dir {folder}",
        ]
    )
