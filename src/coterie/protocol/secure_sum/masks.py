"""Keys and masks: X25519 key agreement, HKDF-SHA256, AES-256-CTR as a stream of random words, AES-GCM."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coterie.errors import SecureSumError
from coterie.protocol.secure_sum.fixed_point import Words

_NONCE_BYTES = 12
_ZEROS = memoryview(bytes(1 << 17))  # of a size that stays in the cache


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key; the private half is never shown."""

    public: bytes
    private: bytes = field(repr=False)

    @classmethod
    def fresh(cls) -> KeyPair:
        return cls.of(secrets.token_bytes(32))

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
        return cls(public, private)

    def agree(self, public: bytes, purpose: bytes) -> bytes:
        """The 32-byte key for this purpose that only the two holders of the private halves can compute."""
        return derive(self.exchange(public), purpose)

    def exchange(self, public: bytes) -> bytes:
        """The raw shared secret (RFC 7748)."""
        try:
            own = X25519PrivateKey.from_private_bytes(self.private)
            return own.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise SecureSumError("a member's public key is not a valid X25519 key") from error


def derive(secret: bytes, purpose: bytes) -> bytes:
    """A 32-byte key for one purpose from a shared secret."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(secret)


def commitment(secret: bytes, about: bytes) -> bytes:
    """What binds somebody to a secret that cannot be guessed, without telling it; `about` says for what."""
    return sha256(b"%d/" % len(about) + about + secret).digest()


def keystream(key: bytes, n: int, counter: bytes = bytes(16)) -> Words:
    """(n,) random 32-bit words that follow from the key: AES-256-CTR over zeros, little-endian."""
    words = np.zeros(n, dtype=np.uint32)
    add_keystream(words, key, counter=counter)
    return words


def add_keystream(total: Words, key: bytes, *, subtract: bool = False, counter: bytes = bytes(16)) -> None:
    """Add that stream to `total`, modulo 2^32 and piece by piece: it need not be in memory as a whole."""
    cipher = Cipher(AES(key), CTR(counter)).encryptor()
    piece = bytearray(len(_ZEROS) + 15)  # as long as the cipher asks for
    for begin in range(0, len(total), len(_ZEROS) // 4):
        part = total[begin : begin + len(_ZEROS) // 4]
        cipher.update_into(_ZEROS[: 4 * len(part)], piece)
        words = np.frombuffer(piece, dtype="<u4", count=len(part))
        (np.subtract if subtract else np.add)(part, words, out=part)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate; `about` (who to whom, in which session) must match when opened."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unseal(key: bytes, box: bytes, about: bytes) -> bytes:
    """The content of a sealed box; an altered or misdirected one is an error."""
    try:
        return AESGCM(key).decrypt(box[:_NONCE_BYTES], box[_NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise SecureSumError("a sealed share was altered or meant for somebody else") from error
