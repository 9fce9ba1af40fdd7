"""Who calls is whose certificate is shown, and nobody else is served."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

import pytest
from tls_peers import MEMBERS, Net, eventually

from coterie.errors import RefusedError


def test_another_sender_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        with pytest.raises(RefusedError, match="sender: the message names carol, the certificate anna"):
            await anna.ask(bob, sender="carol")
        assert bob.refusals == {"sender": 1}
        assert bob.handler.admitted == []
        await anna.ask(bob)

    play(scenario)


@pytest.mark.parametrize("shown", ["stranger", "late"])
def test_an_unknown_or_expired_certificate_is_refused(play: Callable[..., None], shown: str) -> None:
    async def scenario(net: Net) -> None:
        trusts = (*MEMBERS, "late")  # that it is in the roster does not help when it has expired
        anna = await net.peer("anna", shows=shown)
        bob = await net.peer("bob", trusts=trusts)
        with pytest.raises(RefusedError, match="certificate: bob does not accept our certificate"):
            await anna.ask(bob)
        assert bob.refusals == {"certificate": 1}
        assert bob.refused_whom[0].startswith("127.0.0.1:")
        carol = await net.peer("carol")
        await carol.ask(bob)  # others are served as before

    play(scenario)


@pytest.mark.parametrize("shown", ["stranger", "late"])
def test_we_do_not_talk_to_an_unknown_or_expired_certificate(play: Callable[..., None], shown: str) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna", trusts=(*MEMBERS, "late")), await net.peer("bob", shows=shown)
        with pytest.raises(
            RefusedError, match="certificate: bob showed a certificate that is not valid here"
        ):
            await anna.ask(bob)
        assert anna.refusals == {"certificate": 1}
        await eventually(lambda: bob.refusals == {"certificate": 1})
        assert bob.handler.admitted == []

    play(scenario)


def test_a_member_under_another_members_name_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", shows="carol")
        with pytest.raises(RefusedError, match="the certificate is that of carol, not of bob"):
            await anna.ask(bob)
        assert anna.refusals == {"certificate": 1}
        assert bob.handler.admitted == []

    play(scenario)


def test_a_changed_roster_needs_no_restart(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob", trusts=("bob",))
        with pytest.raises(RefusedError, match="certificate"):
            await anna.ask(bob)
        certificate = net.certificates["anna"]
        before = bob.trusted
        bob.trusted += certificate.pem
        bob.roster[certificate.der] = "anna"
        await anna.ask(bob)
        bob.trusted = before
        del bob.roster[certificate.der]
        with pytest.raises(RefusedError, match="certificate: not in the roster"):
            await anna.ask(bob)  # over the connection that is still open
        with pytest.raises(RefusedError, match="certificate: bob does not accept"):
            await anna.ask(bob)
        assert bob.refusals == {"certificate": 3}

    play(scenario)


def test_a_valid_certificate_outside_the_roster_is_refused(play: Callable[..., None]) -> None:
    """As with a certificate authority: TLS is satisfied, the roster is not."""

    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        del bob.roster[net.certificates["anna"].der]
        with pytest.raises(RefusedError, match="certificate: not in the roster"):
            await anna.ask(bob)
        assert bob.refusals == {"certificate": 1}

    play(scenario)


def test_old_tls_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        anna, bob = await net.peer("anna"), await net.peer("bob")
        context = anna.context(ssl.PROTOCOL_TLS_CLIENT)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        sock = socket.create_connection(("127.0.0.1", bob.transport.port), timeout=5)
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await asyncio.to_thread(context.wrap_socket, sock)
        sock.close()
        await eventually(lambda: bob.refusals == {"malformed": 1})

    play(scenario)


def test_a_caller_without_a_certificate_is_refused(play: Callable[..., None]) -> None:
    async def scenario(net: Net) -> None:
        bob = await net.peer("bob")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = socket.create_connection(("127.0.0.1", bob.transport.port), timeout=5)
        tls = await asyncio.to_thread(context.wrap_socket, sock)
        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            await asyncio.to_thread(tls.recv, 1)
        tls.close()
        await eventually(lambda: bob.refusals == {"certificate": 1})

    play(scenario)
