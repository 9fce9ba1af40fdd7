"""Names and addresses of peers, with errors that a user can act on."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from coterie.errors import ConfigError

# What may stand in a message; `PeerName` and `PeerAddress` below are the same with words for users.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
# host:port, an international name in its ASCII form, xn--...; or relay/host:port/token; or outgoing
Address = Annotated[
    str,
    Field(
        pattern=r"^(outgoing|[A-Za-z0-9._\-\[\]:%*]{1,253}:[0-9]{1,5}|"
        r"relay/[A-Za-z0-9._\-\[\]:%*]{1,253}:[0-9]{1,5}/[0-9a-f]{16,64})$"
    ),
]

OUTGOING = "outgoing"
"""The address of a peer that accepts no connections: others ask it over those that it opened itself."""

_RELAY = re.compile(r"^relay/([^/]+)/([0-9a-f]{16,64})$")
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
    if not is_dialled(text):
        raise ValueError(_HINT)
    host, port = split_address(text)
    if not host or (":" in host and not text.startswith("[")):
        raise ValueError(_HINT)
    if not lowest_port <= port <= 65535:
        raise ValueError(f"a port is a number from {lowest_port} to 65535")
    return text


def _valid_reach(text: str) -> str:
    if text.startswith("relay/"):
        if split_relay(text) is None:
            raise ValueError(
                "through a relay it is relay/host:port/token, whose token has 16 hex digits or more"
            )
        valid_address(text.split("/")[1])
        return text
    return text if text == OUTGOING else valid_address(text)


def split_relay(address: str) -> tuple[str, str] | None:
    """`relay/host:7500/0123456789abcdef` -> ("host:7500", "0123456789abcdef"); None for other addresses."""
    match = _RELAY.match(address)
    return None if match is None else (match[1], match[2])


def is_dialled(address: str) -> bool:
    """Whether an address is that of the peer itself, which listens there."""
    return address != OUTGOING and not address.startswith("relay/")


PeerName = Annotated[str, AfterValidator(_valid_name)]
PeerAddress = Annotated[str, AfterValidator(valid_address)]
Reach = Annotated[str, AfterValidator(_valid_reach)]
"""How a peer is reached: at an address, or over connections that it opened itself."""


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
    return not is_dialled(address) or split_address(address)[0] not in _ANYWHERE


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, by an address or a name that nobody else can give away."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
