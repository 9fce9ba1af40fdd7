"""A private key and its certificate, in one file of a folder that only its owner reads.

They share a file, so that one rename replaces both. The key never leaves that file and this process, and
appears in no message, log or `repr`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from cryptography import x509

from coterie.errors import ConfigError
from coterie.files import SECRET, make_private_folder, read_secret, write_atomically, write_new
from coterie.peer.trust import certificates
from coterie.peer.trust.certificates import PrivateKey

LOCK_FILE = ".lock"  # exists while a folder's files are changed
_Own = TypeVar("_Own", bound="Credentials")


@dataclass(frozen=True, eq=False, repr=False)
class Credentials:
    """What an `Identity` and an `Authority` are made of."""

    FILE: ClassVar[str]
    OWNER: ClassVar[str]  # whose folder has such a file, for messages: a peer

    folder: Path
    certificate: x509.Certificate
    _key: PrivateKey = field(repr=False)

    @classmethod
    def load(cls: type[_Own], folder: Path) -> _Own:
        path = folder / cls.FILE
        if not path.is_file():
            raise ConfigError(f"{folder} is not {cls.OWNER}'s folder: it has no {cls.FILE}")
        key, certificate = certificates.parse_pair(read_secret(path), path)
        certificates.common_name(certificate)
        return cls(folder, certificate, key)

    @property
    def path(self) -> Path:
        return self.folder / self.FILE

    @property
    def name(self) -> str:
        return certificates.common_name(self.certificate)

    @property
    def fingerprint(self) -> str:
        return certificates.fingerprint(self.certificate)

    @property
    def certificate_pem(self) -> str:
        return certificates.certificate_pem(self.certificate)

    def _written(self: _Own) -> _Own:
        """Written to its folder, where there must be none yet."""
        make_private_folder(self.folder)
        write_new(self.path, self._pem(), SECRET)
        return self

    def _replacing(self: _Own) -> _Own:
        """Written in place of the one that its folder has, which stays until this one is complete."""
        write_atomically(self.path, self._pem(), mode=SECRET)
        return self

    def _pem(self) -> bytes:
        return certificates.pair_pem(self._key, self.certificate)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.fingerprint})"
