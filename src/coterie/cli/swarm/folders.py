"""Folders of peers that trust each other, for `coterie swarm`: keys and rosters made on the fly."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from coterie.errors import PeerError
from coterie.peer.trust.cards import card_of
from coterie.peer.trust.identity import Identity
from coterie.peer.trust.roster import ROSTER_FILE, roster_text
from coterie.peer.trust.settings import SETTINGS_FILE, PeerSettings, settings_text

EXPERIMENT_FILE = "experiment.toml"
_HOST = "127.0.0.1"
# Below the ports that systems give to outgoing connections, which could take one before its peer listens.
_PORTS = range(20_000, 32_000)
_SUSPECT_AFTER = 10.0  # many processes share the machine and may be slow to answer, above all at the start


def make_folders(folder: Path, experiment: Mapping[str, Any], names: list[str], mode: str) -> list[Path]:
    """A peer's folder for each name; all use one experiment file."""
    (folder / EXPERIMENT_FILE).write_text(tomli_w.dumps(dict(experiment)), encoding="utf-8")
    cards = []
    for number, (name, port) in enumerate(zip(names, free_ports(len(names)), strict=True)):
        settings = PeerSettings.model_validate(
            {
                "name": name,
                "number": number,
                "listen": f"{_HOST}:{port}",
                "experiment": f"../{EXPERIMENT_FILE}",
                "mode": mode,
                "suspect_after": _SUSPECT_AFTER,
            }
        )
        cards.append(card_of(Identity.create(folder / name, name), settings))
        (folder / name / SETTINGS_FILE).write_text(settings_text(settings), encoding="utf-8")
    for name in names:
        others = {card.name: card for card in cards if card.name != name}
        (folder / name / ROSTER_FILE).write_text(roster_text(others), encoding="utf-8")
    return [folder / name for name in names]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on; from a random place, so that two swarms do not meet."""
    start = random.SystemRandom().randrange(len(_PORTS))
    found: list[int] = []
    with contextlib.ExitStack() as open_sockets:  # until all are found, so that none is found twice
        for step in range(len(_PORTS)):
            if len(found) == count:
                break
            port = _PORTS[(start + step) % len(_PORTS)]
            sock = open_sockets.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                sock.bind((_HOST, port))
                found.append(port)
    if len(found) < count:
        raise PeerError(f"this machine has only {len(found)} free ports for {count} peers")
    return found
