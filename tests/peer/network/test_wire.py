"""Two releases of Coterie: they talk if they state the same version of the messages, or say both versions."""

from __future__ import annotations

import json

import pytest

from coterie.errors import RefusedError
from coterie.peer.network.messages import (
    WIRE,
    Claim,
    Finding,
    Had,
    Head,
    Hello,
    Inquiry,
    Lend,
    News,
    Parcel,
    Receipt,
    Refusal,
    SealAnswer,
    SealStep,
    Terms,
    Voucher,
    Whereabouts,
    decode_head,
    encode_head,
)

DIGEST = "0" * 64
HAD = Had(members=(1, 2, 4), rounds=(1, 2))
# As version 4 writes them. If this test fails, peers of two releases would not understand each other: then
# WIRE has to grow, and these lines are written anew.
RECORDED: list[tuple[Head, str]] = [
    (
        Hello(
            sender="bob",
            number=1,
            digest=DIGEST,
            at=Whereabouts(address="h:1", serial=7, proof="cHJvb2Y="),
            round=3,
            slot=1,
            terms=Terms(rounds=20, lr=0.1, deadline=60.0),
            news="0011",
            missing=(2,),
            addresses={"carol": Whereabouts(address="outgoing")},
        ),
        '{"kind":"hello","wire":4,"sender":"bob","number":1,"digest":"' + DIGEST + '","parts":{},'
        '"at":{"address":"h:1","serial":7,"proof":"cHJvb2Y="},"round":3,"slot":1,"finished":false,"since":0,"until":null,"terms":{"rounds":20,"lr":0.1,"deadline":60.0},"news":"0011","lend":false,'
        '"missing":[2],"addresses":{"carol":{"address":"outgoing","serial":0,"proof":""}}}',
    ),
    (
        Parcel(sender="bob", round=3, slot=1),
        '{"kind":"parcel","sender":"bob","round":3,"slot":1,"empty":false}',
    ),
    (Inquiry(sender="bob", round=3, slot=1), '{"kind":"inquiry","sender":"bob","round":3,"slot":1}'),
    (News(sender="bob"), '{"kind":"news","sender":"bob"}'),
    (Lend(sender="bob"), '{"kind":"lend","sender":"bob"}'),
    (
        SealStep(
            sender="bob", round=3, slot=1, step="mask", session="ab" * 16, members=(1, 2, 3), threshold=3
        ),
        '{"kind":"seal","sender":"bob","round":3,"slot":1,"step":"mask","session":"' + "ab" * 16 + '",'
        '"members":[1,2,3],"threshold":3,"exponent":0}',
    ),
    (
        SealAnswer(sender="bob", accused=(2,)),
        '{"kind":"seal-answer","sender":"bob","exponent":0,"accused":[2]}',
    ),
    (
        Claim(sender="bob", round=3, slot=1, session="ab" * 16, members=(1, 2, 3), had=(HAD,)),
        '{"kind":"claim","sender":"bob","round":3,"slot":1,"session":"' + "ab" * 16 + '",'
        '"members":[1,2,3],"had":[{"members":[1,2,4],"rounds":[1,2]}]}',
    ),
    (
        Voucher(sender="bob", proof="cHJvb2Y=", missing=(HAD,)),
        '{"kind":"voucher","sender":"bob","proof":"cHJvb2Y=","missing":[{"members":[1,2,4],"rounds":[1,2]}]}',
    ),
    (Receipt(sender="bob"), '{"kind":"receipt","sender":"bob","duplicate":false}'),
    (Finding(sender="bob", taken=None), '{"kind":"finding","sender":"bob","taken":null}'),
    (
        Refusal(sender="bob", reason="stale", text="over"),
        '{"kind":"refusal","sender":"bob","reason":"stale","text":"over"}',
    ),
]
HELLO_OF_0_1_0 = (
    '{"kind":"hello","sender":"bob","number":1,"digest":"' + DIGEST + '","address":"h:1","round":3,"slot":0,'
    '"finished":false,"addresses":{}}'
)


@pytest.mark.parametrize(("head", "recorded"), RECORDED, ids=lambda value: getattr(value, "kind", ""))
def test_recorded_heads_are_read_and_written_as_ever(head: Head, recorded: str) -> None:
    assert WIRE == 4
    assert decode_head(recorded.encode()) == head
    assert encode_head(head) == recorded.encode()


def refusal_of(raw: str) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decode_head(raw.encode())
    return caught.value


def test_the_first_release_is_refused_with_both_versions() -> None:
    refused = refusal_of(HELLO_OF_0_1_0)
    assert refused.reason == "version"
    assert "a hello in version 1 of the messages, where version 4 is spoken" in refused.text


@pytest.mark.parametrize("unknown", [{}, {"mood": "good"}])
def test_a_later_version_is_refused_with_both_versions(unknown: dict[str, str]) -> None:
    """Whether or not its hello has fields that this release does not know."""
    table = {**json.loads(RECORDED[0][1]), "wire": 5, **unknown}
    refused = refusal_of(json.dumps(table))
    assert refused.reason == "version"
    assert "a hello in version 5 of the messages, where version 4 is spoken" in refused.text


@pytest.mark.parametrize("wire", [4, "5", 0, -1, 10**9, None, [4], 4.0, True])
def test_a_hello_that_is_wrong_otherwise_is_malformed(wire: object) -> None:
    table = {**json.loads(RECORDED[0][1]), "wire": wire, "number": "one"}
    assert refusal_of(json.dumps(table)).reason == "malformed"
