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
    from coterie.peer.exchange import committed
    from coterie.peer.exchange.sealed import bodies as seal_bodies
    from coterie.peer.exchange.sealed.sealing import Sealing
    from coterie.peer.exchange.sealed.vouching import sums_of
    from coterie.peer.trust import cards

from coterie.errors import CoterieError
from coterie.peer.exchange.membership import Position
from coterie.peer.exchange.metrics import Metrics
from coterie.peer.exchange.sealed.party import Party
from coterie.peer.exchange.signal import Signal
from coterie.peer.network.messages import Claim, Had, SealStep, Voucher, decode_head, encode_head
from coterie.protocol.ledger import Ledger

STEPS = ("measure", "advertise", "share", "mask", "unmask")
GROUP, COLLECTOR, PLACE = (1, 2, 3), 9, Position(3, 1)
HAD = (Had(members=(1, 2, 3, 4), rounds=(1, 2)),)
CLAIM = Claim(sender="peer-9", round=3, slot=1, session="ab" * 16, members=GROUP, had=HAD)


class Nobody:
    """A membership that knows no names: a member needs them only to count bytes."""

    def roster(self) -> dict[int, Any]:
        return {}


def member(number: int) -> Sealing:
    party = Party(
        f"peer-{number}",
        number,
        transport=None,  # type: ignore[arg-type]  # a member only answers
        membership=Nobody(),  # type: ignore[arg-type]
        changed=Signal(),
        metrics=Metrics(),
    )
    made = Sealing(party, patience=1.0, at=lambda: PLACE)
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
            for n in GROUP:
                members[n].vouching.answer(COLLECTOR, CLAIM, PLACE.round)
            bodies = dict.fromkeys(GROUP, seal_bodies.pack_claim(CLAIM, dict.fromkeys(GROUP, b"")))
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
        seal_bodies.unpack_claim,
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
    """What a collector claims, and what members say of its sums; then a sum is asked for."""
    said = decode_head(data)
    if isinstance(said, Claim):
        asked = member(1)
        asked.vouching.answer(COLLECTOR, said, PLACE.round)
        had = asked.vouching.check(COLLECTOR, said, {1: b""})
        asked.party.ledger.refusal(COLLECTOR, said.round, said.members, had)
        again = Ledger()
        again.recall(asked.party.ledger.tensors())
    elif isinstance(said, Voucher):
        sums_of(said.missing)
        seal_bodies.unpack_proof(said.proof)


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
    found += [b"\5" + encode_head(said) for said in (CLAIM, Voucher(sender="bob", missing=HAD))]
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
