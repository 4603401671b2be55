"""A node's life carries another way to learn than gossip: here, whoever has the token trains one round."""

from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta, Struct

from p2pfl.core.core import Course
from p2pfl.core.events import CommitRound, Effect, Finish, RoundCommitted, RoundTrained, StartRound, StopRequested
from p2pfl.core.settings import Facts, Phase
from p2pfl.errors import UserError
from p2pfl.features import FEATURES
from p2pfl.net.extensions import ExtensionChannel, HandledChannel
from p2pfl.node.assembly import settings_for
from p2pfl.node.feature import Attached, Feature


class Token(Struct, frozen=True, array_like=True, tag=1):
    """Whoever gets it may train a round, if any is left."""

    left: Annotated[int, Meta(ge=0, lt=2**16)]


CHANNEL = ExtensionChannel("turns", Token, most_bytes=16, per_s=1000.0, at_once=1000.0)


class Turns(Course):
    """`hand_on` says what is told to the neighbor."""

    def __init__(self, setup, state):
        self.settings = settings_for(setup)
        self.facts = Facts(degree=1, samples=state.samples, version=state.version, rounds=state.rounds)
        self.is_first = setup.member.index == 0
        self.left, self.over, self.training = 2 * self.settings.rounds, False, False

    @property
    def phase(self) -> Phase:
        if self.over:
            return Phase.FINISHED
        return Phase.TRAINING if self.training else Phase.WAITING

    @property
    def ended_by(self) -> str | None:
        return "every turn was taken" if self.facts.done else None

    def take(self, left) -> list[Effect]:
        """The token has come."""
        self.left, self.training = left, left > 0
        if not left:
            self.facts.done = True
            return self.finish()
        return [StartRound(index=self.facts.rounds, accompanied=True)]

    def finish(self) -> list[Effect]:
        self.over, self.training = True, False
        return [Finish()]

    def handle(self, event, now) -> list[Effect]:
        facts = self.facts
        match event:
            case RoundTrained():
                version = facts.version + 1
                return [CommitRound(version=version, trained=True, rho=1.0, elapsed_s=0.0, least_samples=facts.samples)]
            case RoundCommitted(version=version, rounds=rounds):
                facts.version, facts.rounds, self.training = version, rounds, False
                self.left -= 1
                self.hand_on(Token(left=self.left))
                facts.done = not self.left
                return self.finish() if facts.done else []
            case StopRequested():
                return self.finish()
        return []  # of gossip nothing is done


class TurnsFeature(Feature):
    name = "turns"

    def guards(self, setup):
        return True

    def course(self, setup, state):
        return Turns(setup, state)

    def attach(self, node):
        return Talking(node)


class Talking(Attached):
    def __init__(self, node):
        self.talk = Talk(node)

    def channels(self):
        return (HandledChannel(channel=CHANNEL, handler=self.talk, guards=True),)


class Talk:
    def __init__(self, node):
        self.node, self.course, self.peer = node, node.core, None
        self.course.hand_on = lambda token: node.say(self.peer, CHANNEL, token)

    def opened(self, peer):
        self.peer = peer
        if self.course.is_first:
            self.node.carry_out(self.course.take(self.course.left - 2 * self.course.facts.rounds))

    def closed(self, peer):
        pass

    def hear(self, peer, message):
        self.node.carry_out(self.course.take(message.left))


WITH_TURNS = (*FEATURES, TurnsFeature())
ROUNDS = 5


async def test_nodes_take_turns_and_end_with_result_and_status(ward, start):
    field = ward(2, training={"rounds": ROUNDS})
    nodes = start(field, features=WITH_TURNS)
    results = [await node.result() for node in nodes]
    for result in results:
        assert (result.finished, result.rounds, result.exchanges) == (True, ROUNDS, 0)
        assert (result.ended_by, result.phase, result.through) == ("every turn was taken", "finished", True)
    models = [field.model(index) for index in range(2)]
    again = start(field, 0, features=WITH_TURNS)[0]
    await again.until(lambda: again.status is not None)
    assert (again.status.rounds, again.status.phase) == (ROUNDS, "waiting")
    assert (await again.stop()).finished is False
    assert (field.model(0) == models[0]).all()


async def test_stopped_in_the_middle_they_go_on_from_their_disks(ward, start):
    field = ward(2, training={"rounds": 150})
    nodes = start(field, features=WITH_TURNS)
    await nodes[1].until(lambda: nodes[1].rounds > 2)
    stopped = [await node.stop() for node in nodes]
    assert not any(one.finished for one in stopped)
    again = start(field, features=WITH_TURNS)
    await again[0].until(lambda: again[0].status is not None)
    assert again[0].rounds >= stopped[0].rounds > 1
    results = [await node.result() for node in again]
    assert [one.finished for one in results] == [True, True]
    assert abs(sum(one.rounds for one in results) - 300) <= 1  # the one that had the token may have been cut off


async def test_two_features_that_bring_a_course_are_refused(ward, start):
    (node,) = start(ward(2), 0, features=(TurnsFeature(), Other()))
    with pytest.raises(UserError, match="turns and other each provide a course"):
        await node.result()


class Other(TurnsFeature):
    name = "other"
