"""Secure sums: known answers for the parts, the right sum for the whole, and nothing but the sum.

Keys and masks are drawn from the system's randomness, so statistical bounds are at about one in 10^9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised import quantised_sum

from coterie.errors import SecureSumError
from coterie.protocol.secure_sum import (
    FixedPoint,
    Form,
    Keys,
    PairwiseCollector,
    PairwiseMember,
    Plan,
    secure_sum_locally,
)
from coterie.protocol.secure_sum.collector import OneTimeCollector
from coterie.protocol.secure_sum.masks import KeyPair, derive, keystream, seal, unseal
from coterie.protocol.secure_sum.member import STEPS, OneTimeMember
from coterie.protocol.secure_sum.shamir import (
    PRIME,
    VECTOR_PRIME,
    combine,
    combine_vectors,
    split,
    split_vector,
)

FORMS: tuple[Form, ...] = ("pairwise", "one-time")
both_forms = pytest.mark.parametrize("form", FORMS)


def vectors(members: int, n: int = 50, seed: int = 0) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=n).astype(np.float32)) for _ in range(members)]


# Known answers


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 6.1: the keys of Alice and Bob, and their shared secret."""
    private_a = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
    private_b = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
    public_a = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    public_b = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    a, b = KeyPair.of(bytes.fromhex(private_a)), KeyPair.of(bytes.fromhex(private_b))
    assert (a.public.hex(), b.public.hex()) == (public_a, public_b)
    assert a.exchange(b.public).hex() == b.exchange(a.public).hex() == shared


def test_keystream_is_aes_256_ctr_of_nist() -> None:
    """SP 800-38A, F.5.5: plaintext xor ciphertext is the keystream."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    cipher = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5")
    expected = np.frombuffer(plain, "<u4") ^ np.frombuffer(cipher, "<u4")
    assert keystream(key, 8, counter).tolist() == expected.tolist()


def test_hkdf_is_that_of_rfc_5869() -> None:
    """Test case 3: SHA-256, no salt, no info; the first 32 of its 42 bytes."""
    found = derive(bytes.fromhex("0b" * 22), b"")
    assert found.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_shamir_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secret 42, coefficients 7 and 3: f(1) = 52, f(2) = 68, f(5) = 152."""
    coefficients = iter([7, 3])
    monkeypatch.setattr(
        "coterie.protocol.secure_sum.shamir.secrets.randbelow", lambda below: next(coefficients)
    )
    shares = split((42).to_bytes(32, "little"), 3, [1, 2, 5])
    assert shares == {1: 52, 2: 68, 5: 152}
    assert int.from_bytes(combine(shares, 3), "little") == 42
    with pytest.raises(SecureSumError, match="2 shares of a secret arrived, and 3 are needed"):
        combine({1: 52, 2: 68}, 3)


def test_wrong_shares_are_noticed() -> None:
    with pytest.raises(SecureSumError, match="do not fit"):
        combine({1: PRIME - 5, 2: 12345}, 2)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(2, 7), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, n: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, n))
    shares = split(secret, threshold, range(1, n + 1))
    chosen = data.draw(st.permutations(range(1, n + 1)))[:threshold]
    assert combine({point: shares[point] for point in chosen}, threshold) == secret


def test_vector_shares_add_up() -> None:
    """A sum of shares is a share of the sum, at the edges of the field too."""
    a = np.array([0, 1, VECTOR_PRIME - 1, 2**31], dtype=np.uint32)
    b = np.array([5, VECTOR_PRIME - 1, VECTOR_PRIME - 1, 2**31], dtype=np.uint32)
    shares_a, shares_b = (split_vector(v, 3, [1, 2, 3, 900]) for v in (a, b))
    assert combine_vectors(shares_a, 3).tolist() == a.tolist()
    added = {
        p: ((shares_a[p].astype(np.uint64) + shares_b[p]) % VECTOR_PRIME).astype(np.uint32) for p in shares_a
    }
    del added[1]
    assert combine_vectors(added, 3).tolist() == [
        (int(x) + int(y)) % VECTOR_PRIME for x, y in zip(a, b, strict=True)
    ]


def test_fixed_point_by_hand() -> None:
    encoding = FixedPoint(clip=8.0, levels=2**22)
    words = encoding.encode(torch.tensor([-8.0, 0.0, 8.0, 100.0, -9.0, 2.0**-18]))
    assert words.tolist() == [0, 2**21, 2**22, 2**22, 0, 2**21 + 1]
    assert encoding.decode(words, 1).tolist() == [-8.0, 0.0, 8.0, 8.0, -8.0, 2.0**-18]
    assert encoding.most_members == 1023


def test_sealed_boxes_are_for_one_reader_and_cannot_be_altered() -> None:
    key = bytes(range(32))
    box = seal(key, b"share", b"1 to 2")
    assert unseal(key, box, b"1 to 2") == b"share"
    for wrong in (
        (bytes(32), box, b"1 to 2"),
        (key, box, b"1 to 3"),
        (key, box[:-1] + b"x", b"1 to 2"),
        (key, b"", b""),
    ):
        with pytest.raises(SecureSumError):
            unseal(*wrong)


# The sum


@both_forms
@pytest.mark.parametrize("members", [2, 3, 5, 12])
def test_the_sum_is_right_and_equals_the_quantised_sum_bit_for_bit(form: Form, members: int) -> None:
    inputs = vectors(members)
    total = secure_sum_locally(inputs, form=form)
    assert torch.equal(total, quantised_sum(inputs))
    exact = torch.stack(inputs).double().sum(0)
    assert float((total - exact).abs().max()) <= 1e-5 * members
    assert float((total / members - exact / members).abs().max()) <= 1e-5


def test_a_model_sized_vector() -> None:
    inputs = vectors(3, n=60_000)
    assert torch.equal(secure_sum_locally(inputs), secure_sum_locally(inputs, form="one-time"))


@both_forms
@settings(max_examples=40, deadline=None)
@given(members=st.integers(2, 6), data=st.data())
def test_every_drop_out_pattern_gives_the_survivors_sum_or_a_clear_error(
    form: Form, members: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(members // 2 + 1, members))
    dropped = data.draw(st.dictionaries(st.integers(0, members - 1), st.sampled_from(STEPS)))
    inputs = vectors(members, n=5)
    there = {
        step: [m for m in range(members) if STEPS.index(dropped.get(m, "unmask")) > i]
        for i, step in enumerate(STEPS)
    }
    survivors = there["mask"]
    answering = [m for m in range(members) if m not in dropped]
    if len(answering) < threshold:
        with pytest.raises(SecureSumError, match=f"threshold is {threshold}"):
            secure_sum_locally(inputs, threshold, dropped=dropped, form=form)
    else:
        total = secure_sum_locally(inputs, threshold, dropped=dropped, form=form)
        assert torch.equal(total, quantised_sum([inputs[m] for m in survivors]))


@both_forms
def test_one_of_three_may_drop_out_and_two_may_not(form: Form) -> None:
    inputs = vectors(3)
    total = secure_sum_locally(inputs, 2, dropped={1: "mask"}, form=form)
    assert torch.equal(total, quantised_sum([inputs[0], inputs[2]]))
    with pytest.raises(SecureSumError, match="only 1 of 3 members are left after step mask"):
        secure_sum_locally(inputs, 2, dropped={1: "mask", 2: "mask"}, form=form)


@pytest.mark.parametrize(
    ("members", "threshold", "message"),
    [
        (1, 1, "2 to 1023"),
        (3, 1, "from 2 to 3"),
        (3, 4, "from 2 to 3"),
        (4, 2, "from 3 to 4"),
        (2000, 1500, "2 to 1023"),
    ],
)
def test_impossible_groups_are_refused(members: int, threshold: int, message: str) -> None:
    with pytest.raises(SecureSumError, match=message):
        secure_sum_locally(vectors(members, n=1), threshold)


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(SecureSumError, match="finite"):
        secure_sum_locally([torch.tensor([1.0]), torch.tensor([torch.nan])])
    with pytest.raises(SecureSumError, match="different lengths"):
        secure_sum_locally([torch.zeros(2), torch.zeros(2), torch.zeros(3)])


# Nothing but the sum


def group(kind: Callable[..., Any], inputs: list[torch.Tensor], threshold: int) -> list[Any]:
    plan = Plan(b"session", tuple(range(len(inputs))), threshold)
    return [kind(number, vector, plan) for number, vector in enumerate(inputs)]


def masked_vectors(members: list[Any]) -> list[np.ndarray]:
    roster = {m.number: m.advertise() for m in members}
    boxes = {m.number: m.share(roster) for m in members}
    return [
        m.mask({sender: boxes[sender][m.number] for sender in boxes if sender != m.number}) for m in members
    ]


@pytest.mark.parametrize("kind", [PairwiseMember, OneTimeMember])
def test_a_masked_vector_is_uniform(kind: Callable[..., Any]) -> None:
    """All members hold zeros; low and high bytes of each masked vector pass a chi-square test."""
    n = 40_000
    for words in masked_vectors(group(kind, [torch.zeros(n)] * 3, 2)):
        for shift in (0, 24):
            counts = np.bincount(words >> shift & 255, minlength=256)
            chi_square = float(((counts - n / 256) ** 2 / (n / 256)).sum())
            assert 130 < chi_square < 420  # 255 degrees of freedom: p about 1e-9 on both sides


def test_pair_masks_cancel() -> None:
    inputs = vectors(4)
    members = group(PairwiseMember, inputs, 3)
    total = np.zeros(50, dtype=np.uint32)
    for member, words in zip(members, masked_vectors(members), strict=True):
        total += words - keystream(member._seed, 50)
    assert torch.equal(FixedPoint().decode(total, 4), quantised_sum(inputs))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 6), data=st.data())
def test_key_and_self_mask_of_a_member_are_never_both_revealed(n: int, data: st.DataObject) -> None:
    """Even a collector that tells every member something else about who survived gets at most one."""
    threshold = data.draw(st.integers(n // 2 + 1, n))
    members = group(PairwiseMember, [torch.zeros(1)] * n, threshold)
    masked_vectors(members)
    seeds, keys = dict.fromkeys(range(n), 0), dict.fromkeys(range(n), 0)
    for member in members:
        told = {member.number, *data.draw(st.sets(st.integers(0, n - 1)))}
        try:
            answer = member.unmask(told)
        except SecureSumError:
            assert len(told) < threshold
            continue
        assert not answer.seeds.keys() & answer.keys.keys()
        for other in answer.seeds:
            seeds[other] += 1
        for other in answer.keys:
            keys[other] += 1
        with pytest.raises(SecureSumError, match="next step is nothing"):
            member.unmask(range(n))
    for other in range(n):
        assert min(seeds[other], keys[other]) < threshold


def test_a_member_refuses_what_would_reveal_more() -> None:
    members = group(PairwiseMember, [torch.zeros(1)] * 3, 2)
    with pytest.raises(SecureSumError, match="next step is advertise"):
        members[0].unmask([0, 1])
    roster = {m.number: m.advertise() for m in members}
    with pytest.raises(SecureSumError, match="does not hold the keys of member 0"):
        members[0].share({**roster, 0: Keys(bytes(32), bytes(32))})
    other = group(OneTimeMember, [torch.zeros(1)] * 3, 2)
    masked_vectors(other)
    for survivors, message in (([1, 2], "only sums with itself"),):
        with pytest.raises(SecureSumError, match=message):
            other[0].unmask(survivors)
    with pytest.raises(SecureSumError, match="are no members"):
        group(PairwiseMember, [torch.zeros(1)] * 3, 2)[0].plan.require([0, 1, 7], "mask")


def test_a_box_for_another_member_is_refused() -> None:
    members = group(PairwiseMember, [torch.zeros(1)] * 3, 2)
    roster = {m.number: m.advertise() for m in members}
    boxes = [m.share(roster) for m in members]
    with pytest.raises(SecureSumError, match="altered, meant for somebody else") as refusal:
        members[0].mask({1: boxes[1][2], 2: boxes[2][0]})
    assert refusal.value.accused == {1}


@pytest.mark.parametrize("collector", [PairwiseCollector, OneTimeCollector])
def test_a_collector_refuses_incomplete_messages(collector: Callable[[Plan], Any]) -> None:
    made = collector(Plan(b"s", (0, 1, 2), 2))
    made.roster({number: Keys(bytes(32), bytes(32)) for number in range(3)})
    with pytest.raises(SecureSumError, match="member 1 did not send shares to all others"):
        made.route({0: {1: b"", 2: b""}, 1: {0: b""}}, {})


def test_secrets_are_not_shown() -> None:
    member = group(PairwiseMember, [torch.zeros(1)] * 3, 2)[0]
    hidden = [member._seed, member._sealing.private, member._masking.private]
    shown = repr(member) + repr(member._sealing) + repr(member.advertise())
    for secret in hidden:
        assert secret.hex() not in shown
        assert repr(secret) not in shown
    masked_vectors(rest := group(PairwiseMember, [torch.zeros(1)] * 3, 2))
    assert repr(rest[0].unmask([0, 1])) == "Reveal()"
