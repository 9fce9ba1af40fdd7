"""`coterie ca`: a small private certificate authority. None of this needs PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.errors import ConfigError, RunFolderError
from coterie.files import write_new
from coterie.peer.trust.authority import Authority
from coterie.peer.trust.cards import card_of_authority
from coterie.peer.trust.names import check_name
from coterie.toml_tables import read_text

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder.", show_default=False)]


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.", show_default=False)],
    name: Annotated[
        str | None, typer.Option(help="The authority's name.", metavar="NAME", show_default="that of DIR")
    ] = None,
) -> None:
    """Make an authority: a key that can vouch for all peers of an organisation."""
    chosen = check_name(name or folder.resolve().name, "the authority's name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists already and is not empty; choose another folder")
    authority = Authority.create(folder, chosen)
    typer.echo(f"{folder} holds the authority {authority.name}; keep authority.pem secret.")
    typer.echo(f"  A peer that it signs:             coterie peer init NAME --ca {folder}")
    typer.echo(f"  or one on another machine:        coterie ca sign {folder} REQUEST")
    typer.echo(f"  What peers elsewhere must trust:  coterie ca card {folder} > {authority.name}.card")


def sign(
    folder: Folder,
    requests: Annotated[
        list[Path],
        typer.Argument(
            metavar="REQUEST...", help="Files made with `coterie peer request`.", show_default=False
        ),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Also if a name has a certificate already.")
    ] = False,
) -> None:
    """Sign requests; each certificate is written beside its request."""
    authority = Authority.load(folder)
    texts = {path: read_text(path) for path in requests}
    targets = {path: path.with_suffix(".crt") for path in requests}
    for path, target in targets.items():
        if target.exists():
            raise ConfigError(f"{target} exists already, and is not overwritten; move it away")
        if list(targets.values()).count(target) > 1:
            raise ConfigError(f"{path}: two requests would both be answered in {target}")
    for path, text in texts.items():
        try:
            certificate = authority.sign(text, replace=replace)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        write_new(targets[path], certificate.encode())
        typer.echo(f"{targets[path]}: to be used with `coterie peer install {targets[path].name}`")


def card(folder: Folder) -> None:
    """Print what peers need to trust this authority; nothing in it is secret."""
    typer.echo(card_of_authority(Authority.load(folder)).text(), nl=False)
