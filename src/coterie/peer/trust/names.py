"""Names and addresses of peers, with errors that a user can act on."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from coterie.errors import ConfigError

# What may stand in a message; `PeerName` and `PeerAddress` below are the same with words for users.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
# host:port; an international name in its ASCII form, xn--...
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9._\-\[\]:%*]{1,253}:[0-9]{1,5}$")]

_HINT = "an address is host:port, such as alice.example.org:7400 or [::1]:7400"

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_ADDRESS: TypeAdapter[str] = TypeAdapter(Address)
_ANYWHERE = ("0.0.0.0", "::", "*")


def _valid_name(text: str) -> str:
    try:
        return _NAME.validate_python(text)
    except ValidationError:
        raise ValueError(
            "a name has at most 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
        ) from None


def valid_address(text: str, lowest_port: int = 1) -> str:
    """The text, if it is host:port; raises ValueError. lowest_port 0: also "any free port"."""
    try:
        _ADDRESS.validate_python(text)
    except ValidationError:
        raise ValueError(_HINT) from None
    host, port = split_address(text)
    if not host or (":" in host and not text.startswith("[")):
        raise ValueError(_HINT)
    if not lowest_port <= port <= 65535:
        raise ValueError(f"a port is a number from {lowest_port} to 65535")
    return text


PeerName = Annotated[str, AfterValidator(_valid_name)]
PeerAddress = Annotated[str, AfterValidator(valid_address)]


def check_name(name: str, what: str = "name") -> str:
    """The name, if it is one; raises ConfigError."""
    try:
        return _valid_name(name)
    except ValueError as error:
        raise ConfigError(f"{what} {name!r}: {error}") from None


def split_address(address: str) -> tuple[str, int]:
    """`[::1]:7400` -> ("::1", 7400)."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def can_be_dialled(address: str) -> bool:
    """Whether the host is one machine, rather than all interfaces of whoever listens there."""
    return split_address(address)[0] not in _ANYWHERE


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, by an address or a name that nobody else can give away."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
