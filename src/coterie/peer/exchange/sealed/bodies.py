"""What the messages of a secure sum carry, as bytes. Whatever does not fit raises SecureSumError."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from coterie.errors import RefusedError, SecureSumError
from coterie.peer.network.messages import Claim, decode_head, encode_head
from coterie.protocol.secure_sum import COMMITMENT_BYTES, SHARE_BYTES, Keys, Plan, Promise, Reveal, Words

MOST_MEMBERS = 1000
MOST_BYTES_PER_MEMBER = 2048  # of anything but the masked vector

_KEY_BYTES = 32
_MOST_PARTS = 2 * MOST_MEMBERS + 1
_LONGEST_PART_NAME = 255
_PART_COUNT = struct.Struct("!I")
_PART_LENGTHS = struct.Struct("!HQ")  # of the name, of the value


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


def pack_shared(boxes: Mapping[int, bytes], promise: Promise) -> bytes:
    """A member's boxes for the others, and what it promises about them to the collector."""
    parts = {f"box-{n}": box for n, box in boxes.items()}
    parts |= {f"said-{n}": said for n, said in promise.shares.items()}
    return encode_parts({"seed": promise.seed, **parts})


def unpack_shared(content: bytes, roster: Collection[int], number: int) -> tuple[dict[int, bytes], Promise]:
    """The boxes, one for every other member of the roster, and a promise about everyone's shares."""
    parts = _parts(content)
    seed = parts.pop("seed", b"")
    found: dict[str, dict[int, bytes]] = {"box": {}, "said": {}}
    for name, part in parts.items():
        kind, _, other = name.partition("-")
        if kind not in found:
            raise SecureSumError("it sent something that is neither a share nor a promise")
        found[kind][_number(other)] = part
    if found["box"].keys() != set(roster) - {number}:
        raise SecureSumError("it did not send shares to all others")
    if found["said"].keys() != set(roster) or len(seed) != COMMITMENT_BYTES:
        raise SecureSumError("it did not commit itself to its seed and to all shares")
    if any(len(said) != 2 * COMMITMENT_BYTES for said in found["said"].values()):
        raise SecureSumError("a commitment to shares has a wrong length")
    return found["box"], Promise(seed, found["said"])


def pack_letters(boxes: Mapping[int, bytes], promised: Mapping[int, bytes]) -> bytes:
    """The boxes for one member, each behind what its sender promised about it."""
    return pack({sender: promised[sender] + box for sender, box in boxes.items()})


def unpack_letters(content: bytes) -> tuple[dict[int, bytes], dict[int, bytes]]:
    size, letters = 2 * COMMITMENT_BYTES, unpack(content)
    return (
        {sender: letter[size:] for sender, letter in letters.items()},
        {sender: letter[:size] for sender, letter in letters.items()},
    )


def pack_words(words: Words) -> bytes:
    return words.astype("<u4", copy=False).tobytes()


def unpack_words(content: bytes, length: int) -> Words:
    """(length,) of a masked vector: as long as one's own."""
    if len(content) != 4 * length:
        raise SecureSumError(f"a masked vector has {len(content)} bytes instead of {4 * length}")
    return np.frombuffer(content, dtype="<u4").astype(np.uint32, copy=False)


def pack_claim(claim: Claim, proofs: Mapping[int, bytes]) -> bytes:
    """What the last step is asked with: whose sum, and who vouches for it."""
    return encode_parts({"claim": encode_head(claim), **{str(n): proof for n, proof in proofs.items()}})


def unpack_claim(content: bytes) -> tuple[Claim, dict[int, bytes]]:
    parts = _parts(content)
    try:
        claim = decode_head(parts.pop("claim", b""))
    except RefusedError:
        claim = None
    if not isinstance(claim, Claim):
        raise SecureSumError("the claim to a sum is not readable")
    return claim, {_number(name): proof for name, proof in parts.items()}


def unpack_proof(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


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


# Named byte strings


def encode_parts(parts: Mapping[str, bytes]) -> bytes:
    """Named byte strings: their number, then for each both lengths, the name, the value."""
    if len(parts) > _MOST_PARTS:
        raise ValueError(f"{len(parts)} parts; at most {_MOST_PARTS} are allowed")
    pieces = [_PART_COUNT.pack(len(parts))]
    for name, value in parts.items():
        raw = name.encode()
        if len(raw) > _LONGEST_PART_NAME:
            raise ValueError(f"a part's name has {len(raw)} bytes; at most {_LONGEST_PART_NAME} are allowed")
        pieces += [_PART_LENGTHS.pack(len(raw), len(value)), raw, value]
    return b"".join(pieces)


def decode_parts(body: bytes) -> dict[str, bytes]:
    if len(body) < _PART_COUNT.size:
        raise RefusedError("truncated", f"a body of {len(body)} bytes is too short for named parts")
    (count,) = _PART_COUNT.unpack_from(body)
    if count > _MOST_PARTS:
        raise RefusedError("oversized", f"the body claims {count} parts; at most {_MOST_PARTS} are allowed")
    parts: dict[str, bytes] = {}
    place = _PART_COUNT.size
    for _ in range(count):
        name, value, place = _part_at(body, place)
        if name in parts:
            raise RefusedError("malformed", f"two parts are named {name!r}")
        parts[name] = value
    if place != len(body):
        raise RefusedError("oversized", f"{len(body) - place} bytes follow the last part")
    return parts


def _part_at(body: bytes, place: int) -> tuple[str, bytes, int]:
    start = place + _PART_LENGTHS.size
    if start > len(body):
        raise RefusedError("truncated", "the body ended before a part")
    name_length, value_length = _PART_LENGTHS.unpack_from(body, place)
    if name_length > _LONGEST_PART_NAME:
        raise RefusedError("malformed", f"a part's name claims {name_length} bytes")
    middle = start + name_length
    end = middle + value_length
    if end > len(body):
        raise RefusedError("truncated", f"a part claims {end} bytes of a body of {len(body)}")
    try:
        name = body[start:middle].decode()
    except UnicodeDecodeError:
        raise RefusedError("malformed", "a part's name is not UTF-8") from None
    return name, body[middle:end], end
