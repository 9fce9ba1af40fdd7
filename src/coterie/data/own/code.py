"""Data that the user's own code makes: `file.py:function(arguments)` or `file.py:Class(arguments)`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from coterie.errors import ConfigError, DataError
from coterie.registry import call_user_code, fill, load_reference, parse_call
from coterie.user_code import split_reference


def call_for_data(text: str, offers: Mapping[str, Any]) -> Any:
    """What the user's function returns, or a method `load` of the user's class.

    offers: what the function, or the method, is given if it asks for it, such as `peers` and `seed`. Whatever
    it raises is an error of the data.
    """
    reference, positional, keywords = parse_call(text, "data")
    file, name = split_reference(reference)
    found = load_reference(reference, "data")
    if not callable(found):
        raise ConfigError(f"data {text!r}: {name} in {file} is {found!r}, not a function")
    shown = f"data {text!r}"
    if inspect.isclass(found):
        made = call_user_code(found, fill(found, shown, positional, keywords), reference)
        found, positional, keywords = getattr(made, "load", None), [], {}
        if not callable(found):
            raise ConfigError(f"{shown}: {name} in {file} has no method load(data_dir, peers, seed)")
        shown += ", load"
    else:
        offers = {key: value for key, value in offers.items() if key != "data_dir"}
    return call_user_code(found, fill(found, shown, positional, keywords, offers), reference, DataError)
