"""The data that a real peer brings itself: a file, or a function of the user's that returns arrays."""

from __future__ import annotations

from coterie.data.own.one_peer import OwnData, checked, load_own
from coterie.user_code import call_for_data, is_file_reference, split_reference


def load_peer_data(reference: str) -> OwnData:
    """What `data = "..."` in a `peer.toml` names: file.npz, file.csv or file.py:function."""
    if not is_file_reference(reference):
        return load_own(reference)
    file, name = split_reference(reference)
    return checked(call_for_data(reference), f"{name} in {file}")
