"""Peers as users write them: `0-4,7`. Needs no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coterie.errors import ConfigError

_RANGE = re.compile(r"^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$")


def peers_in(text: str, peers: int, where: str) -> list[int]:
    """The ids in `0-4,7`, both ends included; `where` names the setting in errors."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise ConfigError(f"{where}: {text!r} is not a list of peers such as 0-4,7")
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < peers:
            raise ConfigError(f"{where}: {part.strip()!r} is not within the peers 0 to {peers - 1}")
        found += range(first, last + 1)
    return found


def dealt_out(models: Mapping[str, str], peers: int) -> dict[str, list[int]]:
    """Which peers have which model; an error for a peer that has two."""
    owner: dict[int, str] = {}
    for model, text in models.items():
        for peer in peers_in(text, peers, f"models.{model}"):
            if owner.setdefault(peer, model) != model:
                raise ConfigError(f"models: peer {peer} is listed under {owner[peer]!r} and under {model!r}")
    return {model: [peer for peer, its in sorted(owner.items()) if its == model] for model in models}
