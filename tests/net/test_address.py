"""Addresses as users write them, and why a node is not reached at one, in words for a person."""

from __future__ import annotations

import socket

import pytest

from p2pfl.net import (
    GoneError,
    cannot_listen,
    dial_websocket,
    is_hidden,
    misses,
    open_browserless,
    parse_address,
    reason_of,
)


@pytest.mark.parametrize(
    ("address", "listen", "hidden"),
    [
        ("192.168.1.9:8470", "127.0.0.1:8470", True),
        ("pi1.local:8470", "[::1]:8470", True),
        ("192.168.1.9:8470", "0.0.0.0:8470", False),
        ("127.0.0.1:8470", "127.0.0.1:8470", False),
        (None, "127.0.0.1:8470", False),
    ],
)
def test_a_node_hides_if_others_look_for_it_where_it_does_not_listen(address, listen, hidden):
    assert is_hidden(address, listen) is hidden


@pytest.mark.parametrize(
    ("address", "listen", "forwarded", "missed"),
    [
        ("pi1.local:8470", "0.0.0.0:8470", None, False),
        ("pi1.local:8470", "0.0.0.0:8471", None, True),
        ("pi1.local:8470", "0.0.0.0:8471", 8470, False),
        ("pi1.local:8470", "0.0.0.0:8470", 8471, True),
        (None, "0.0.0.0:8470", None, False),
    ],
)
def test_others_miss_a_node_whose_port_is_neither_that_of_its_address_nor_passed_on(address, listen, forwarded, missed):
    assert misses(address, listen, forwarded) is missed


def test_a_port_that_is_taken_is_told_in_one_clause():
    taken = OSError(98, "error while attempting to bind on address ('127.0.0.1', 8491): address already in use")
    said = str(cannot_listen(parse_address("127.0.0.1:8491", "listen"), taken, "listen"))
    assert "cannot listen on 127.0.0.1:8491: Address already in use;" in said


async def test_a_refused_connection_is_not_blamed_on_tls():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    async with open_browserless() as http:
        with pytest.raises(GoneError) as refused:
            await dial_websocket(http, parse_address(f"127.0.0.1:{port}", "address"))
    assert reason_of(refused.value) == "Connection refused"


def test_silence_has_a_reason_too():
    assert reason_of(TimeoutError()) == "no answer in time"
