"""Fuzz every step of a sealed sum, cards and the small files of a peer's state. `make fuzz` runs it.

The first byte of an input chooses who reads it. Anything but a valid value or an error that Coterie raises on
purpose is a crash; so are a hang and memory beyond the limits that libFuzzer is given. Arguments are
libFuzzer's. Masks and keys make an input slow: some hundreds are tried in a second.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris
import torch

with atheris.instrument_imports(
    include=["coterie.peer.exchange", "coterie.peer.trust.cards", "coterie.protocol.secure_sum"]
):
    from coterie.peer.exchange import committed, seal_bodies
    from coterie.peer.exchange.sealing import Sealing
    from coterie.peer.trust import cards

from coterie.errors import CoterieError
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import (
    Hello,
    SealStep,
    SumNotice,
    Whereabouts,
    decode_head,
    encode_head,
)
from coterie.peer.notices import Notices
from coterie.protocol.ledger import Ledger

STEPS = ("measure", "advertise", "share", "mask", "unmask")
GROUP, COLLECTOR, PLACE = (1, 2, 3), 9, Position(3, 1)


class Nobody:
    """A membership that knows no names: a member needs them only to count bytes."""

    def roster(self) -> dict[int, Any]:
        return {}


def member(number: int) -> Sealing:
    made = Sealing(
        f"peer-{number}",
        number,
        transport=None,  # type: ignore[arg-type]  # a member only answers
        membership=Nobody(),  # type: ignore[arg-type]
        changed=Signal(),
        metrics=Metrics(),
        patience=1.0,
        at=lambda: PLACE,
    )
    made.open(PLACE, torch.linspace(-1, number, 5), {COLLECTOR})
    return made


def head(step: str) -> SealStep:
    return SealStep(
        sender="peer-9", round=3, slot=1, step=step, session="ab" * 16, members=GROUP, threshold=3, exponent=4
    )


def bodies_until(step: str, members: dict[int, Sealing]) -> dict[int, bytes]:
    """All steps before this one, for everyone; the true bodies for this one."""
    bodies = dict.fromkeys(GROUP, b"")
    for name in STEPS[: STEPS.index(step)]:
        answers = {n: members[n].take(COLLECTOR, head(name), bodies[n])[1] for n in GROUP}
        if name == "advertise":
            bodies = dict.fromkeys(GROUP, seal_bodies.pack(answers))
        elif name == "share":
            shared = {n: seal_bodies.unpack_shared(answer, GROUP, n) for n, answer in answers.items()}
            bodies = {
                n: seal_bodies.pack_letters(
                    {k: boxes[n] for k, (boxes, _) in shared.items() if k != n},
                    {k: promise.shares[n] for k, (_, promise) in shared.items()},
                )
                for n in GROUP
            }
        elif name == "mask":
            bodies = dict.fromkeys(GROUP, seal_bodies.pack_survivors(list(GROUP)))
    return bodies


def step(data: bytes) -> None:
    """A member at the step that the second byte names; what follows is the collector's message."""
    if data:
        name = STEPS[data[0] % len(STEPS)]
        members = {number: member(number) for number in GROUP}
        bodies_until(name, members)
        members[1].take(COLLECTOR, head(name), data[1:])


def answers(data: bytes) -> None:
    """What a collector reads."""
    for read in (
        seal_bodies.Advertised.unpack,
        seal_bodies.unpack_reveal,
        seal_bodies.unpack_survivors,
        seal_bodies.unpack_letters,
        lambda body: seal_bodies.unpack_shared(body, GROUP, 1),
        lambda body: seal_bodies.unpack_words(body, 5),
    ):
        try:
            read(data)
        except CoterieError:
            continue


def card(data: bytes) -> None:
    cards.parse_card(data.decode("utf-8", "replace"))


def notes(data: bytes) -> None:
    committed.parse_notes({"notes": data.decode("utf-8", "replace")}, Path("checkpoint"))


def begun(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="coterie-fuzz-") as folder:
        (Path(folder) / committed.BEGUN).write_bytes(data)
        committed.read_begun(Path(folder))


def told(data: bytes) -> None:
    """What members say of others' sums: any two say the same, and a sum is asked for."""
    said = decode_head(data)
    if isinstance(said, Hello):
        ledger = Ledger()
        notices = Notices(0, ledger, lambda: 3)
        for teller in (1, 2, 3):
            notices.told(teller, said.sums)
        ledger.refusal(COLLECTOR, 3, GROUP)
        again = Ledger()
        again.recall(ledger.tensors())


READERS = [step, answers, card, notes, begun, told]


def one_input(data: bytes) -> None:
    if data:
        try:
            READERS[data[0] % len(READERS)](data[1:])
        except CoterieError as error:
            if len(str(error)) > 2000:
                raise AssertionError("too long a text") from error


def seeds() -> list[bytes]:
    """A valid input for each reader: mutations of them get further than noise."""
    found = [
        b"\3" + b'{"round": 1, "taken": [[1, 2, 3]], "denied": [], "doubts": []}',
        b"\4" + b'{"round": 7}',
    ]
    for place, name in enumerate(STEPS):
        body = bodies_until(name, {number: member(number) for number in GROUP})[1]
        found += [b"\0" + bytes([place]) + body, b"\1" + body]
    hello = Hello(
        sender="bob",
        number=1,
        digest="0" * 64,
        at=Whereabouts(address="h:1"),
        round=3,
        sums=(SumNotice(collector=9, round=2, slot=1, members=(1, 2, 3, 4)),),
    )
    found.append(b"\5" + encode_head(hello))
    return [*found, b'\2name = "bob"\nnumber = 1\naddress = "h:1"\ncertificate = "x"\nfingerprint = "y"\n']


def main() -> int:
    """libFuzzer ends its process without clean-up, so it gets one of its own."""
    with tempfile.TemporaryDirectory(prefix="coterie-fuzz-") as folder:
        for number, seed in enumerate(seeds()):
            (Path(folder) / f"seed-{number}").write_bytes(seed)
        child = os.fork()
        if not child:
            atheris.Setup([*sys.argv, folder], one_input)
            atheris.Fuzz()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
