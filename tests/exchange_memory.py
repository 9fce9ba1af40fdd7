"""A peer that reports how much memory its exchanges took: python exchange_memory.py FOLDER (Linux)."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import torch

from coterie.experiments.real_peers.joining import join
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.post import Exchanged
from coterie.protocol import Exchange


def memory(which: str) -> int:
    """VmRSS: now, VmHWM: the most so far; in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(which):
            return 1024 * int(line.split()[1])
    raise AssertionError(which)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    joining = join(folder)
    post, base = joining.peer.post, []
    exchange = post.exchange

    async def measured(what: Exchange, at: Position, *, repeated: bool) -> Exchanged:
        Path("/proc/self/clear_refs").write_text("5")  # the most so far begins anew
        base.append(memory("VmRSS"))
        return await exchange(what, at, repeated=repeated)

    post.exchange = measured  # type: ignore[method-assign, assignment]
    asyncio.run(joining.take_part())
    result: dict[str, Any] = {
        "base": base[-1],
        "most": memory("VmHWM"),  # until the end: mixing and the checkpoint are in it
        "received": sum(joining.peer.metrics.bytes_in.values()),
        "sent": sum(joining.peer.metrics.bytes_out.values()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
