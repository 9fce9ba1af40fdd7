"""What peers say to each other: a small typed head, and for some kinds a body of bytes.

Every message names its sender, and the receiver compares that with the TLS certificate of the connection.
Heads are JSON checked against the classes below; bodies are safetensors (see `wire`). Nothing is unpickled.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from coterie.peer.trust.names import Address, Name

Reason: TypeAlias = Literal[
    "certificate",  # unknown, expired, or signed by a stranger
    "sender",  # the message names another sender than the connection's certificate
    "experiment",  # the peers' experiment files differ
    "stale",  # a round that is over
    "early",  # a round that is too far ahead
    "shape",  # names, shapes or dtypes of tensors are not those of this exchange
    "not-finite",  # NaN or infinity
    "oversized",
    "truncated",
    "malformed",
    "slow",  # too few bytes in too long a time
    "busy",  # too many connections or messages at once
    "disk",  # what must be kept cannot be written
    "sealing",  # a step of a secure sum that does not fit
    "unexpected",  # a message that this peer has no use for
]

Round = Annotated[int, Field(ge=-1, le=10**9)]
Slot = Annotated[int, Field(ge=0, le=10**6)]
Number = Annotated[int, Field(ge=0, le=10**6)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Hello(_Head):
    """Who I am and where I am; also the heartbeat, and its own answer."""

    kind: Literal["hello"] = "hello"
    sender: Name
    number: Number  # place in the experiment
    digest: Digest  # of the experiment
    address: Address
    round: Round  # where the peer is: before, or in, this round's exchange number `slot`; -1: not started
    slot: Slot = 0
    finished: bool = False
    addresses: Annotated[dict[Name, Address], Field(max_length=150)] = Field(default_factory=dict)


class Parcel(_Head):
    """The payload of an exchange for the receiver, in the body; or word that there is none."""

    kind: Literal["parcel"] = "parcel"
    sender: Name
    round: Round
    slot: Slot
    empty: bool = False  # nothing for you in this exchange: do not wait for me


class Inquiry(_Head):
    """Did my parcel reach you? Asked by a sender that got no answer."""

    kind: Literal["inquiry"] = "inquiry"
    sender: Name
    round: Round
    slot: Slot


class SealStep(_Head):
    """A collector asks a member for its part in a secure sum."""

    kind: Literal["seal"] = "seal"
    sender: Name
    round: Round
    slot: Slot
    step: Literal["measure", "advertise", "share", "mask", "unmask"]
    session: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    members: Annotated[tuple[Number, ...], Field(max_length=1000)] = ()
    threshold: Annotated[int, Field(ge=0, le=1000)] = 0
    exponent: Annotated[int, Field(ge=-64, le=64)] = 0  # all values are within 2^exponent


class Receipt(_Head):
    """The parcel was taken, now or before."""

    kind: Literal["receipt"] = "receipt"
    sender: Name
    duplicate: bool = False


class Finding(_Head):
    """The answer to an inquiry; None: too long ago to know."""

    kind: Literal["finding"] = "finding"
    sender: Name
    taken: bool | None


class SealAnswer(_Head):
    kind: Literal["seal-answer"] = "seal-answer"
    sender: Name
    exponent: Annotated[int, Field(ge=-64, le=64)] = 0


class Refusal(_Head):
    """Why a message was not taken; nothing else changed at the receiver."""

    kind: Literal["refusal"] = "refusal"
    sender: Name
    reason: Reason
    text: Annotated[str, Field(max_length=500)]


Head: TypeAlias = Annotated[
    Hello | Parcel | Inquiry | SealStep | Receipt | Finding | SealAnswer | Refusal,
    Field(discriminator="kind"),
]
HEAD: TypeAdapter[Head] = TypeAdapter(Head)
