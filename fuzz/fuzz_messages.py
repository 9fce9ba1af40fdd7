"""Fuzz what reads bytes from the network: heads, trees, parts and frames. `make fuzz` runs a million inputs.

The first byte of an input chooses the decoder. Anything but a valid value or a RefusedError is a crash; so
are a hang and memory beyond the limits that libFuzzer is given. Arguments are libFuzzer's.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import atheris
import torch

with atheris.instrument_imports(include=["coterie.peer.network", "coterie.peer.exchange.sealed.bodies"]):
    from coterie.peer.exchange.sealed import bodies as seal_bodies
    from coterie.peer.network import connection, messages

from coterie.errors import RefusedError
from coterie.peer.network.messages import Hello, Parcel, Receipt, Refusal, SealStep, Whereabouts

PAYLOAD = {
    "model": {"w": torch.ones(1, 2, 3), "b": torch.ones(1, 3, dtype=torch.float16)},
    "mass": torch.ones(1, dtype=torch.float64),
    "mask": torch.ones(1, 2, dtype=torch.bool),
    "none": torch.ones(1, 0, dtype=torch.int64),
}
SHAPE = messages.shape_of(PAYLOAD)
LIMITS = connection.Limits(largest_body=1 << 20)


class Bytes:
    """A connection that delivers the input in pieces and then ends."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    async def read(self, view: memoryview, until: float) -> int:
        piece = self.data[self.place : self.place + min(len(view), 1000)]
        view[: len(piece)] = piece
        self.place += len(piece)
        return len(piece)

    async def write(self, data: memoryview, until: float) -> int:
        return len(data)


def head(data: bytes) -> None:
    decoded = messages.decode_head(data)
    assert messages.decode_head(messages.encode_head(decoded)) == decoded


def tree(data: bytes) -> None:
    decoded = messages.decode_tree(data, SHAPE)
    assert messages.shape_of(decoded) == SHAPE


def tree_in_file(data: bytes) -> None:
    path = FOLDER / "body"
    path.write_bytes(data)
    assert messages.shape_of(messages.decode_tree(path, SHAPE)) == SHAPE


def parts(data: bytes) -> None:
    assert seal_bodies.encode_parts(seal_bodies.decode_parts(data)) == data


def frames(data: bytes) -> None:
    drive(conversation(connection.Frames(Bytes(data), LIMITS, spool=None, clock=lambda: 0.0)))


async def conversation(reader: connection.Frames) -> None:
    """As the listening side reads requests."""
    while (opening := await reader.opening(1.0)) is not None:
        body = await reader.body(opening.size)
        assert len(body) == opening.size <= LIMITS.largest_body  # type: ignore[arg-type]
        assert reader.in_step
        messages.decode_head(opening.head)


def drive(work: Coroutine[Any, Any, None]) -> None:
    """Without a loop: nothing here waits."""
    try:
        while True:
            work.send(None)
    except StopIteration:
        pass


DECODERS = [head, tree, parts, frames, tree_in_file]
FOLDER = Path(os.devnull)  # main makes one


def one_input(data: bytes) -> None:
    if not data:
        return
    try:
        DECODERS[data[0] % len(DECODERS)](data[1:])
    except RefusedError as error:
        if len(error.text) > 500:  # what a refusal may say
            raise AssertionError("too long a text") from error


def seeds() -> list[bytes]:
    """A valid input for each decoder: mutations of them get further than noise."""
    heads = [
        Hello(
            sender="anna",
            number=1,
            digest="0" * 64,
            at=Whereabouts(address="a:1", serial=3, proof="QUJD"),
            round=0,
            addresses={"bob": Whereabouts(address="b:2")},
        ),
        Parcel(sender="anna", round=1, slot=2),
        SealStep(sender="anna", round=1, slot=2, step="mask", session="0" * 32, members=(1, 2)),
        Receipt(sender="anna"),
        Refusal(sender="anna", reason="slow", text="text"),
    ]
    raw = [messages.encode_head(each) for each in heads]
    body = messages.encode_tree(PAYLOAD)
    framed = b"".join(struct.pack("!IQ", len(each), 5) + each + b"12345" for each in raw)
    named = seal_bodies.encode_parts({"one": b"1", "two": bytes(40)})
    return [*(b"\0" + each for each in raw), b"\1" + body, b"\2" + named, b"\3" + framed, b"\4" + body]


def main() -> int:
    """libFuzzer ends its process without clean-up, so it gets one of its own."""
    with tempfile.TemporaryDirectory(prefix="coterie-fuzz-") as folder:
        child = os.fork()
        if not child:
            fuzz(Path(folder))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fuzz(folder: Path) -> None:
    global FOLDER
    FOLDER = folder
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([*sys.argv, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
