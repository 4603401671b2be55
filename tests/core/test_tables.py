"""Every message and every answer of the engine has its transition."""

from __future__ import annotations

from typing import get_args

from p2pfl.core import exchange
from p2pfl.core.events import EngineResult
from p2pfl.core.messages import Message


def test_an_edge_knows_what_to_do_with_every_message_and_every_answer():
    assert set(exchange._MESSAGES) == set(get_args(Message))
    assert set(exchange._RESULTS) == set(get_args(EngineResult))
