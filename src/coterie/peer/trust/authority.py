"""A small private certificate authority, for organisations that want one key to vouch for all their peers.

Whoever holds it can speak for every peer whose certificate it signed. The folder has the key and certificate
(`authority.pem`) and a list of what was signed (`issued.csv`).
"""

from __future__ import annotations

import csv
import io
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.errors import ConfigError
from coterie.files import alone, write_atomically
from coterie.peer.trust import certificates
from coterie.peer.trust.certificates import AUTHORITY_DAYS, PEER_DAYS, PublicKey
from coterie.peer.trust.credentials import LOCK_FILE, Credentials

AUTHORITY_FILE = "authority.pem"
ISSUED_FILE = "issued.csv"
_COLUMNS = ["serial", "name", "key", "valid_until"]
Issued = dict[str, str]


class Authority(Credentials):
    """The key and certificate of an authority's folder."""

    FILE, OWNER = AUTHORITY_FILE, "an authority"

    @classmethod
    def create(
        cls,
        folder: Path,
        name: str,
        *,
        valid_days: float = AUTHORITY_DAYS,
        valid_from: datetime | None = None,
    ) -> Authority:
        """A new authority; an existing one is never touched."""
        key = certificates.new_key()
        certificate = certificates.issue(
            key.public_key(),
            name,
            issuer=name,
            issuer_key=key,
            valid_days=valid_days,
            valid_from=valid_from,
            authority=True,
        )
        return cls(folder, certificate, key)._written()

    @classmethod
    def load(cls, folder: Path) -> Authority:
        authority = super().load(folder)
        if not certificates.may_sign_others(authority.certificate):
            raise ConfigError(f"{authority.path} is a peer's certificate, which may not sign others")
        return authority

    def sign(
        self,
        request: str,
        *,
        replace: bool = False,
        valid_days: float = PEER_DAYS,
        valid_from: datetime | None = None,
    ) -> str:
        """The PEM certificate for a PEM request. Only its name and key are used.

        replace: also when the name has a certificate already, for another key. Without it, nobody gets a
        certificate with the name of another peer by mistake.
        """
        name, public = _read_request(request)
        problem = certificates.wrong_dates(self.certificate)
        if problem:
            raise ConfigError(f"the authority {self.name!r} {problem}; make a new one")
        with alone(self.folder / LOCK_FILE, wait=True):
            issued = self._issued()
            _refuse_reuse(name, _key_digest(public), issued, replace)
            certificate = certificates.issue(
                public,
                name,
                issuer=self.name,
                issuer_key=self._key,
                valid_days=valid_days,
                valid_from=valid_from,
                not_after=self.certificate.not_valid_after_utc,
            )
            entry = {
                "serial": f"{certificate.serial_number:x}",
                "name": name,
                "key": _key_digest(public),
                "valid_until": f"{certificate.not_valid_after_utc:%Y-%m-%d}",
            }
            self._write_issued([*issued, entry])  # first the list: nothing is signed that is not in it
        return certificates.certificate_pem(certificate)

    def _issued(self) -> list[Issued]:
        path = self.folder / ISSUED_FILE
        if not path.exists():
            return []
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def _write_issued(self, issued: list[Issued]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(issued)
        write_atomically(self.folder / ISSUED_FILE, text.getvalue().encode())


def _read_request(pem: str) -> tuple[str, PublicKey]:
    try:
        request = x509.load_pem_x509_csr(pem.encode())
    except ValueError:
        raise ConfigError("this is not a certificate request; make one with `coterie peer request`") from None
    public = request.public_key()
    if not request.is_signature_valid:
        raise ConfigError("the request was changed: its signature does not fit; have it sent again")
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise ConfigError("the request's key is not an elliptic-curve key on P-256")
    return certificates.common_name(request), public


def _refuse_reuse(name: str, key: str, issued: list[Issued], replace: bool) -> None:
    owner = next((entry["name"] for entry in issued if entry["key"] == key), name)
    if owner != name:
        raise ConfigError(f"the key of this request is that of {owner!r}; each peer needs a key of its own")
    if not replace and any(entry["name"] == name for entry in issued):
        raise ConfigError(
            f"{name!r} has a certificate of this authority already; if the request is really from the same "
            "peer, say --replace"
        )


def _key_digest(public: PublicKey) -> str:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return digest.finalize().hex()
