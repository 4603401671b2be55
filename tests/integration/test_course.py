"""One feature alone may bring another way to learn than gossip; how its nodes end, trees and shared noise show."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from p2pfl.node import Feature


class Turns(Feature):
    name = "turns"

    def guards(self, setup):
        return True

    def algorithm(self, setup, state):
        return object()


class Other(Turns):
    name = "other"


async def test_two_features_that_bring_a_course_are_refused(ward, start):
    (node,) = start(ward(2), 0, features=(Turns(), Other()))
    with pytest.raises(UserError, match="turns and other each provide a course"):
        await node.result()
