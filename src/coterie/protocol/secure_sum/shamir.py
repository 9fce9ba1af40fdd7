"""Shamir's secret sharing (1979): any `threshold` shares give the secret, fewer tell nothing about it.

Numbers (seeds and keys of 32 bytes) are shared in the field of 2^521 - 1 elements; whole vectors of
32-bit words in the field of 2^32 - 5, whose products fit 64 bits.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import numpy as np

from coterie.errors import SecureSumError
from coterie.protocol.secure_sum.fixed_point import Words
from coterie.protocol.secure_sum.masks import keystream

PRIME = 2**521 - 1
SHARE_BYTES = 66
VECTOR_PRIME = 2**32 - 5


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, int]:
    """One share for each point, which is a number from 1 on."""
    start = int.from_bytes(secret, "little")
    coefficients = [start, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {point: _evaluate(coefficients, point) for point in points}


def combine(shares: Mapping[int, int], threshold: int, size: int = 32) -> bytes:
    """The secret of `size` bytes from shares by point."""
    chosen = _enough(sorted(shares), threshold)
    secret = sum(shares[point] * _at_zero(point, chosen, PRIME) for point in chosen) % PRIME
    if secret >= 256**size:
        raise SecureSumError("the shares of a secret do not fit together: one of them is wrong")
    return secret.to_bytes(size, "little")


def split_vector(vector: Words, threshold: int, points: Sequence[int]) -> dict[int, Words]:
    """As `split`, for each entry of a vector of numbers below 2^32 - 5."""
    coefficients = [random_vector(len(vector)) for _ in range(threshold - 1)]
    shares = {}
    for point in points:
        value = np.zeros(len(vector), dtype=np.uint64)
        for coefficient in (*coefficients, vector):  # Horner; values and coefficients are below 2^32
            value = (value * np.uint64(point) + coefficient) % np.uint64(VECTOR_PRIME)
        shares[point] = value.astype(np.uint32)
    return shares


def combine_vectors(shares: Mapping[int, Words], threshold: int) -> Words:
    """The vector from shares by point."""
    chosen = _enough(sorted(shares), threshold)
    total = np.zeros(len(shares[chosen[0]]), dtype=np.uint64)
    for point in chosen:
        factor = np.uint64(_at_zero(point, chosen, VECTOR_PRIME))
        total += shares[point] * factor % np.uint64(VECTOR_PRIME)
    return (total % np.uint64(VECTOR_PRIME)).astype(np.uint32)


def random_vector(n: int) -> Words:
    """Numbers below 2^32 - 5, uniform to within 2^-32."""
    words = keystream(secrets.token_bytes(32), 2 * n).view(np.uint64)
    return (words % np.uint64(VECTOR_PRIME)).astype(np.uint32)


def _evaluate(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value


def _at_zero(point: int, points: Sequence[int], prime: int) -> int:
    """Lagrange's factor of a point for the value at 0."""
    top, bottom = 1, 1
    for other in points:
        if other != point:
            top, bottom = top * other % prime, bottom * (other - point) % prime
    return top * pow(bottom, -1, prime) % prime


def _enough(points: Sequence[int], threshold: int) -> Sequence[int]:
    if len(points) < threshold:
        raise SecureSumError(f"{len(points)} shares of a secret arrived, and {threshold} are needed")
    return points[:threshold]
