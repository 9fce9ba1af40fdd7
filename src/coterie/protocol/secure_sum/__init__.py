"""Secure aggregation in a group without a server: whoever asks learns the sum of the members' vectors.

Two forms with the same four steps and messages (see `member`): pairwise masks with a self-mask
(Bonawitz et al. 2017), and one-time masks shared as vectors (Tjell and Wisniewski 2021). Both survive
drop-outs as long as `threshold` members answer; below it they fail with `SecureSumError` and no leak.

What it protects against: a curious collector, also together with up to threshold - 1 members that follow the
protocol (they learn the sum of the others); and a collector that, on its own, tells members different things
about who survived. What it does not: a collector that lies about the survivors and has 2 * threshold - n
helpers among the n members opens every vector; for n = 3 and threshold 2 one is enough. Keys must reach the
members unaltered (peers sign them with their identities). The collector learns the sum: in a group of two
each member can subtract its own vector, and sums over groups that differ in one member reveal the difference
of two vectors.

Vectors are clipped and quantised (`FixedPoint`), so the members must agree on a range. Where it is not known
beforehand, each tells the collector its `magnitude_exponent`, and the collector takes the largest for all
(`agreed_encoding`). The collector then knows the order of magnitude of every member's largest value, too.
"""

from coterie.protocol.secure_sum.collector import (
    Form,
    PairwiseCollector,
    agreed_encoding,
    majority,
    secure_sum_locally,
)
from coterie.protocol.secure_sum.fixed_point import (
    FixedPoint,
    Words,
    check_members,
    magnitude_exponent,
    magnitude_exponents,
)
from coterie.protocol.secure_sum.member import COMMITMENT_BYTES, Keys, PairwiseMember, Plan, Promise, Reveal
from coterie.protocol.secure_sum.shamir import SHARE_BYTES

__all__ = [
    "COMMITMENT_BYTES",
    "SHARE_BYTES",
    "FixedPoint",
    "Form",
    "Keys",
    "PairwiseCollector",
    "PairwiseMember",
    "Plan",
    "Promise",
    "Reveal",
    "Words",
    "agreed_encoding",
    "check_members",
    "magnitude_exponent",
    "magnitude_exponents",
    "majority",
    "secure_sum_locally",
]
