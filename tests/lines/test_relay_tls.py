"""A relay with a certificate of its own: URLs with pins, what is in the way to it, and the name that a member signs."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from memory_kit import MemoryNetwork
from relay_kit import TOKEN, nobody, nothing_listed, parts, until

from p2pfl.config import NETWORK
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.relay import (
    UNTRIED,
    Admissions,
    ListedFederation,
    RelayDialing,
    RelayLink,
    RelayServer,
    Switchboard,
    own_certificate,
)
from p2pfl.net import Address, Limits, WebSocketTransport

PIN = "ab" * 32


@asynccontextmanager
async def relay_with(certificate):
    """Yields the port of a relay with that certificate, and its server."""
    transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests"), certificate=certificate)
    listed = [ListedFederation(name="ward", token=TOKEN)]
    server = RelayServer(Admissions(listed), Switchboard(), nothing_listed())
    await transport.open(Address("127.0.0.1", 0), server.meet)
    running = asyncio.create_task(server.run())
    try:
        yield transport.port, server
    finally:
        running.cancel()
        await transport.close()


async def why_of(url, handshake_s=10.0):
    """Why a member is not registered at the relay at that URL; empty if it is."""
    dialing = RelayDialing()
    own = parts(MemoryNetwork(), Identity(b"m" * 32), limits=Limits(handshake_s=handshake_s))
    link = RelayLink(url, replace(own, dial=dialing.dial))
    task = asyncio.create_task(link.keep(nobody))
    await until(lambda: link.why != UNTRIED)
    why = link.why
    task.cancel()
    await dialing.close()
    return why


@pytest.fixture
def certificate(certificates):
    return own_certificate(certificates.cert("good"), certificates.key("good"))


async def test_tls_and_plain_members_meet_on_one_port_and_the_name_is_the_same(certificate, trusted):
    async with relay_with(certificate) as (port, server):
        seen, admit = [], server._admissions.admit

        def noting(registration, *rest):
            seen.append(registration.relay)
            return admit(registration, *rest)

        server._admissions.admit = noting
        for url in (f"ws://localhost:{port}/p2pfl", f"wss://LOCALHOST:{port}/p2pfl", f"wss://localhost:{port}/p2pfl"):
            assert await why_of(url) == ""
        assert await why_of(f"wss://localhost:{port}/p2pfl#sha256={certificate.pin}") == ""
    assert set(seen) == {f"localhost:{port}/p2pfl"}


async def test_an_expired_certificate_is_said_with_the_clock(certificates, trusted):
    expired = own_certificate(certificates.cert("expired"), certificates.key("expired"))
    async with relay_with(expired) as (port, _):
        said = await why_of(f"wss://localhost:{port}/p2pfl")
        assert "its certificate has expired by the clock of this machine (20" in said
        assert await why_of(f"wss://localhost:{port}/p2pfl#sha256={expired.pin}") == ""


async def test_a_port_where_nothing_listens_and_a_relay_without_tls_are_told_apart():
    said = await why_of("ws://127.0.0.1:1/p2pfl")
    assert said == "Connection refused: is the relay running, and does its firewall let port 1 in?"
    async with relay_with(None) as (port, _):
        assert "the connection was closed in place of TLS: ws:// in place of wss://" in await why_of(
            f"wss://localhost:{port}/p2pfl"
        )
        assert "a web server answers 404" in await why_of(f"ws://localhost:{port}/other")


async def test_a_node_in_place_of_a_relay_is_said():
    transport = WebSocketTransport(Limits(), nothing_listed(), logging.getLogger("tests"))
    await transport.open(Address("127.0.0.1", 0), lambda *_: asyncio.create_task(asyncio.sleep(9)))
    assert "then nothing is said: is it a relay?" in await why_of(f"ws://127.0.0.1:{transport.port}/p2pfl", 0.1)
    await transport.close()


def test_one_of_certificate_and_key_is_of_no_use_and_an_open_key_is_refused(certificates, tmp_path):
    with pytest.raises(UserError, match="--cert, --key"):
        own_certificate(certificates.cert("good"), None)
    shutil.copy(certificates.key("good"), tmp_path / "own.key")
    (tmp_path / "own.key").chmod(0o644)
    with pytest.raises(UserError, match="others may read this secret key"):
        own_certificate(certificates.cert("good"), tmp_path / "own.key")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (f"wss://relay:8443#sha256={PIN}", f"wss://relay:8443/p2pfl#sha256={PIN}"),
        (f"wss://relay/own/path#sha256={PIN}", f"wss://relay/own/path#sha256={PIN}"),
    ],
)
def test_a_relay_s_url_may_pin_its_certificate(written, read):
    assert NETWORK["relays"].read(written) == (read,)


@pytest.mark.parametrize(
    "written", [f"ws://relay#sha256={PIN}", "wss://relay#sha256=12", [f"wss://relay#sha256={PIN}", "wss://relay"]]
)
def test_a_pin_without_tls_or_of_another_length_and_a_relay_with_two_pins_are_mistakes(written):
    with pytest.raises(ValueError):
        NETWORK["relays"].read(written)
