"""The data that a real peer brings itself: a file, or a function of the user's that returns arrays."""

from __future__ import annotations

from pathlib import Path

from coterie.data.own.one_peer import OwnData, checked, load_own
from coterie.errors import ConfigError, DataError
from coterie.experiments.setup.config import is_file_reference
from coterie.user_code import load_module


def load_peer_data(reference: str) -> OwnData:
    """What `data = "..."` in a `peer.toml` names: file.npz, file.csv or file.py:function."""
    if not is_file_reference(reference):
        return load_own(reference)
    file, _, name = reference.rpartition(":")
    function = getattr(load_module(Path(file)), name, None)
    if not callable(function):
        raise ConfigError(f"data {reference!r}: {file} defines no function {name}")
    try:
        arrays = function()
    except (Exception, SystemExit) as error:
        raise DataError(f"{name} in {file} raised {type(error).__name__}: {error}") from error
    return checked(arrays, f"{name} in {file}")
