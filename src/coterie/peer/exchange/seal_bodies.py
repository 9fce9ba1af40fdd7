"""What the messages of a secure sum carry, as bytes. Whatever does not fit raises SecureSumError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.errors import RefusedError, SecureSumError
from coterie.peer.network.wire import decode_parts, encode_parts
from coterie.protocol.secure_sum.fixed_point import Words
from coterie.protocol.secure_sum.member import Keys, Plan, Reveal
from coterie.protocol.secure_sum.shamir import SHARE_BYTES

MOST_MEMBERS = 1000
MOST_BYTES_PER_MEMBER = 2048  # of anything but the masked vector

_KEY_BYTES = 32


@dataclass(frozen=True)
class Advertised:
    """A member's public keys, and the proof that they are its own: empty if peers do not sign."""

    keys: Keys
    proof: bytes = b""

    def pack(self) -> bytes:
        return self.keys.sealing + self.keys.masking + self.proof

    @classmethod
    def unpack(cls, content: bytes) -> Advertised:
        if not 2 * _KEY_BYTES <= len(content) <= MOST_BYTES_PER_MEMBER:
            raise SecureSumError("the public keys of a member have a wrong length")
        sealing, masking = content[:_KEY_BYTES], content[_KEY_BYTES : 2 * _KEY_BYTES]
        return cls(Keys(sealing, masking), content[2 * _KEY_BYTES :])


def statement(round: int, slot: int, collector: int, plan: Plan, number: int, keys: Keys) -> bytes:
    """What member `number` signs: its keys are for this sum, with these members, and for no other."""
    about = [
        round,
        slot,
        collector,
        plan.session.hex(),
        plan.members,
        plan.threshold,
        plan.encoding.clip,
        number,
    ]
    return b"coterie secure sum keys 1\n" + json.dumps(about).encode() + keys.sealing + keys.masking


def pack(parts: Mapping[int, bytes]) -> bytes:
    """Something for, or from, each of several members."""
    return encode_parts({str(number): part for number, part in parts.items()})


def unpack(content: bytes) -> dict[int, bytes]:
    return {_number(name): part for name, part in _parts(content).items()}


def pack_words(words: Words) -> bytes:
    return words.astype("<u4", copy=False).tobytes()


def unpack_words(content: bytes, length: int) -> Words:
    """(length,) of a masked vector: as long as one's own."""
    if len(content) != 4 * length:
        raise SecureSumError(f"a masked vector has {len(content)} bytes instead of {4 * length}")
    return np.frombuffer(content, dtype="<u4").astype(np.uint32, copy=False)


def pack_survivors(survivors: list[int]) -> bytes:
    return json.dumps(survivors).encode()


def unpack_survivors(content: bytes) -> list[int]:
    try:
        numbers = json.loads(content)
    except (ValueError, RecursionError):
        numbers = None
    if (
        not isinstance(numbers, list)
        or not all(type(n) is int for n in numbers)
        or len(numbers) > MOST_MEMBERS
    ):
        raise SecureSumError("the list of survivors is not readable")
    return numbers


def pack_reveal(reveal: Reveal) -> bytes:
    parts = {f"seed-{n}": share.to_bytes(SHARE_BYTES, "little") for n, share in reveal.seeds.items()}
    parts |= {f"key-{n}": share.to_bytes(SHARE_BYTES, "little") for n, share in reveal.keys.items()}
    return encode_parts(parts)


def unpack_reveal(content: bytes) -> Reveal:
    shares: dict[str, dict[int, int]] = {"seed": {}, "key": {}}
    for name, share in _parts(content).items():
        kind, _, number = name.partition("-")
        if kind not in shares or len(share) != SHARE_BYTES:
            raise SecureSumError("a member revealed something that is no share")
        shares[kind][_number(number)] = int.from_bytes(share, "little")
    return Reveal(shares["seed"], shares["key"])


def _number(name: str) -> int:
    if not name.isascii() or not name.isdigit() or len(name) > 7:
        raise SecureSumError(f"{name[:20]!r} is not the number of a member")
    return int(name)


def _parts(content: bytes) -> dict[str, bytes]:
    try:
        return decode_parts(content)
    except RefusedError as error:
        raise SecureSumError(error.text) from None
