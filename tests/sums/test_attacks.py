"""What active colluders may try, and mistakes planted in the code: each is without effect, or found."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from sum_world import IDENTITIES, SumWorld, complete, posted, settings_of

from p2pfl.errors import PeerFault
from p2pfl.features.sums import (
    MemberList,
    Post,
    Reveal,
    SendToNeighbor,
    SetupSecrets,
    SlotQuit,
    SlotVote,
    Sum,
    SumSetup,
    Total,
    bits_of,
    decode_statement,
    encode_statement,
    members_of,
    own_seed,
    pair_seed,
    total_digest,
)


def statement_of(message):
    return decode_statement(message.body) if isinstance(message, Post) else None


def world_of(count=5, labels=("one",), **changes):
    world = SumWorld(count, complete(count), **changes)
    world.ask_all(*labels)
    return world


def test_keys_in_another_order_than_they_were_drawn_in_stop_nobody():
    """A liar's latest keys come first. They are kept, though many older ones come after them."""
    count = 5
    world = SumWorld(count, complete(count))
    drawn = SetupSecrets(world.random.randbytes, 3)
    for serial in (9, 1, 2, 3, 4):
        post = posted(4, drawn.keys(1, serial))
        for index in range(4):
            world.carry_out(index, world.nodes[index].hear(4, post, 0.0))
    world.nodes[4] = None
    world.ask_all("one")
    world.run()
    world.check()
    assert {done.members for _, done in world.done} == {(0, 1, 2, 3)}


def test_a_statement_in_anothers_name_is_a_fault_of_who_brings_it():
    world = world_of()
    world.run()
    forged = posted(3, SlotQuit(setup=bytes(16), number=0, reason="none"))
    forged = Post(author=2, body=forged.body, signature=forged.signature)
    with pytest.raises(PeerFault, match="in the name of member 2"):
        world.nodes[0].hear(3, forged, world.now)


def test_a_statement_of_another_federation_counts_for_nothing():
    world = world_of()
    body = encode_statement(SlotQuit(setup=bytes(16), number=0, reason="none"))
    signature = IDENTITIES[3].sign(settings_of(0, 5, least=4).domain() + body)
    with pytest.raises(PeerFault):
        world.nodes[0].hear(3, Post(author=3, body=body, signature=signature), 0.0)


def two_faced(world, liar):
    """Once a list is proposed, the liar tells some that member 0 is in, and others that it is gone, and signs both."""
    said = []

    def look(sender, message):
        proposal = statement_of(message)
        if isinstance(proposal, MemberList) and proposal.number == 0 and not said:
            said.append(proposal)
            members = tuple(m for m in members_of(proposal.members) if m != 0)
            bits, vector = bits_of(members), np.arange(world.size, dtype="<u8").tobytes()
            digest = total_digest(proposal.setup, 0, bits, vector)
            other = MemberList(setup=proposal.setup, number=0, members=bits, terms=proposal.terms, total=digest)
            post, total = posted(liar, other), Total(setup=proposal.setup, number=0, members=bits, vector=vector)
            for victim in (1, 2):
                world.later(lambda victim=victim: deliver(world, liar, victim, post))
                world.later(lambda victim=victim: deliver(world, liar, victim, total))

    world.on_message = look
    return said


def deliver(world, sender, receiver, message):
    world.watch.see(message)
    world.carry_out(receiver, world.nodes[receiver].hear(sender, message, world.now))


def test_told_that_a_member_is_gone_and_that_it_is_there_no_one_unmasks_it():
    """Some sign the liar's list and some the true one; at most one gets a quorum, so one kind of share is revealed."""
    world = world_of()
    said = two_faced(world, 4)
    world.run()
    assert said
    assert not world.watch.found
    slot = said[0].setup, 0
    assert len(world.watch.certified(slot)) <= 1
    kinds = {tuple(sorted(done.members)) for _, done in world.done}
    assert len(kinds) <= 1


def test_an_old_list_told_again_reveals_nothing_of_a_later_sum():
    world = world_of(labels=("one", "two"), sums=4)
    old = []
    world.on_message = lambda _, message: old.append(message)
    world.run()
    before = len(world.watch.reveals)
    for message in [message for message in old if isinstance(message, Post)]:
        effects = world.nodes[1].hear(0, message, world.now)
        assert not any(
            isinstance(statement_of(each.message), Reveal) for each in effects if isinstance(each, SendToNeighbor)
        )
    assert len(world.watch.reveals) == before


def test_after_a_sum_nobody_has_its_secrets_or_shares_any_more():
    world = world_of()
    world.run()
    for node in world.nodes.values():
        for member in node.setup.held:
            for in_list in (True, False):
                assert node.setup.share(member, 0, in_list=in_list) == b""
                assert node.setup.own_secret(0, in_list=in_list) == b""
                assert node.setup.share(member, 1, in_list=in_list) != b""


def lying(monkeypatch, world, liars):
    true_share = SumSetup.share
    monkeypatch.setattr(
        SumSetup,
        "share",
        lambda self, *a, **k: bytes([7] * 32) if self.settings.index in liars else true_share(self, *a, **k),
    )


def silent_about_oneself(monkeypatch, silent):
    """This member never reveals its own secret, as if it had died after it signed."""
    true = SumSetup.own_secret
    monkeypatch.setattr(
        SumSetup, "own_secret", lambda self, *a, **k: b"" if self.settings.index == silent else true(self, *a, **k)
    )


def test_a_partner_that_lies_in_its_share_does_not_spoil_the_sum(monkeypatch):
    world = world_of(seed=1)  # with one of seven a member has too few right shares in the end
    silent_about_oneself(monkeypatch, 0)
    lying(monkeypatch, world, {4})
    world.run()
    world.check()
    assert len(world.done) == 5
    assert any(reveal.shares for _, reveal in world.watch.reveals)


def test_with_too_many_liars_the_sum_is_refused_and_never_wrong(monkeypatch):
    world = world_of()
    silent_about_oneself(monkeypatch, 0)
    lying(monkeypatch, world, {2, 3, 4})
    world.run()
    world.check()
    assert not world.done
    assert {refused.reason for _, refused in world.refused} == {"too few right shares of member 0"}


def test_a_total_that_is_not_the_one_of_the_list_is_not_taken():
    world = world_of(labels=("one",))
    tampered = []

    def look(sender, message):
        if isinstance(message, Total) and not tampered:
            wrong = (np.frombuffer(message.vector, "<u8") + np.uint64(1)).tobytes()
            tampered.append(Total(setup=message.setup, number=0, members=message.members, vector=wrong))
            world.later(lambda: deliver(world, 0, 3, tampered[0]))

    world.on_message = look
    world.run()
    world.check()
    assert tampered
    assert len(world.done) == 5


def test_two_members_have_no_secure_sum():
    with pytest.raises(ValueError, match="of two, each knows the other's part"):
        settings_of(0, 2)


def test_who_asks_twice_at_once_has_one_clear_error():
    world = SumWorld(3, complete(3))
    world.ask(0, "one")
    with pytest.raises(ValueError, match="'two' was asked for while 'one' is being summed"):
        world.nodes[0].ask("two", world.vector(0, "two"), bytes(32), 0.0)


def test_a_member_that_sums_other_shapes_is_left_out_and_told_so():
    world = SumWorld(5, complete(5))
    for index in range(4):
        world.schedule(0.0, lambda index=index: world.ask(index, "one"))
    world.schedule(0.0, lambda: world.ask(4, "other", values=np.zeros(9, "<u8")))
    world.run()
    world.check()
    assert {done.members for _, done in world.done} == {(0, 1, 2, 3)}
    assert [(i, refused.reason) for i, refused in world.refused] == [
        (4, "this member sums other things than the others")
    ]


def test_where_too_many_sum_other_things_each_is_told_who():
    world = SumWorld(3, complete(3))
    for index, label in enumerate(("one", "one", "other")):
        world.schedule(0.0, lambda index=index, label=label: world.ask(index, label))
    world.run()
    reasons = {refused.reason for _, refused in world.refused}
    assert "member 2 sums other things" in reasons
    assert reasons <= {"member 2 sums other things", "member 0 sums other things"}
    assert len(world.refused) == 3


def test_the_same_data_again_without_one_member_is_refused():
    """The difference of both sums would be that member's summand."""
    world = SumWorld(5, complete(5), sums=4)
    same = [world.vector(index, "one") for index in range(5)]

    def again(index, effect):
        if effect.label == "one":
            world.schedule(5.0, lambda: world.ask(index, "two", values=same[index]))

    world.terms("two")
    world.vector = lambda index, _: same[index]
    world.on_outcome = again
    for index in range(5):
        world.schedule(0.0, lambda index=index: world.ask(index, "one", values=same[index]))
    world.schedule(4.0, lambda: world.crash(2))
    world.run()
    assert {effect.label for _, effect in world.done} == {"one"}
    assert {refused.reason for _, refused in world.refused} == {"too near to an earlier sum of these data"}


def test_other_vectors_of_the_same_data_without_one_member_are_refused():
    """A histogram and the one a level below it add up: the difference would be that member's."""
    world = SumWorld(5, complete(5), sums=4)
    world.data = lambda index: bytes([index]) * 32
    world.ask_all("level 1", "level 2", pause_s=5.0)
    world.schedule(4.0, lambda: world.crash(2))
    world.run()
    assert {effect.label for _, effect in world.done} == {"level 1"}
    assert {refused.reason for _, refused in world.refused} == {"too near to an earlier sum of these data"}


def test_a_sum_of_certain_members_is_refused_without_one_of_them():
    """Also the first one, of which there is no earlier sum to compare it with."""
    world = SumWorld(5, complete(5), sums=4)
    world.only = frozenset(range(5))
    world.crash(2)
    world.ask_all("one")
    world.run()
    assert not world.done
    assert {refused.reason for _, refused in world.refused} == {"other members than this sum is of"}


# Planted mistakes: the checks of these tests must find each of them.


def test_a_seed_used_twice_is_found(monkeypatch):
    own, pair, room = own_seed, pair_seed, "p2pfl.features.sums.setup"
    monkeypatch.setattr(f"{room}.own_seed", lambda _, setup, __: own(b"s" * 32, setup, 0))
    monkeypatch.setattr(f"{room}.pair_seed", lambda _, setup, __, ends: pair(b"s" * 32, setup, 0, ends))
    world = world_of(labels=("one", "two"))
    world.run()
    assert any("used twice" in each for each in world.watch.found)


def test_masks_that_are_not_cancelled_after_a_death_are_found(monkeypatch):
    true = SumSetup.needs
    monkeypatch.setattr(SumSetup, "needs", lambda self, members: [each for each in true(self, members) if each[1]])
    world = world_of(labels=("one", "two"))
    world.on_outcome, go_on = lambda *a: (world.crash(1), go_on(*a)), world.on_outcome
    world.run()
    with pytest.raises(AssertionError, match="is not that of"):
        world.check()


def test_two_survivor_lists_are_found(monkeypatch):
    """All sign whatever they are shown."""
    monkeypatch.setattr(Sum, "has_voted", lambda _: False)
    monkeypatch.setattr(Sum, "_vote", sign_all)
    monkeypatch.setattr(Sum, "_tire", lambda *_: iter(()))
    world = world_of()
    two_faced(world, 4)
    with suppress(AssertionError):  # some wait for ever
        world.run(until_s=10.0)
    assert "two survivor lists" in world.watch.found


def sign_all(self, *_):
    done = self.__dict__.setdefault("signed_by_mistake", set())
    for name, proposal in list(self._tally.lists.items()):
        if name not in done and self._tree.total(proposal.total) is not None:
            done.add(name)
            yield SlotVote(setup=self.setup.id, number=self.number, chosen=name)
        elif name not in done:
            self.missing_total = proposal.total


@pytest.mark.parametrize("is_mistaken", [False, True])
def test_shares_of_a_living_members_mask_key_are_found(monkeypatch, is_mistaken):
    true = SumSetup.share
    monkeypatch.setattr(SumSetup, "erase", lambda *_: None)
    world = world_of(labels=("one",))
    silent_about_oneself(monkeypatch, 0)
    if is_mistaken:
        monkeypatch.setattr(SumSetup, "share", lambda *each, in_list: true(*each, in_list=not in_list))
    world.run()
    world.watch.check_kinds(
        lambda author, _, number, member, in_list: true(world.nodes[author].setup, member, number, in_list=in_list)
    )
    assert bool(world.watch.found) == is_mistaken


def test_a_reveal_before_the_certificate_is_found():
    world = world_of()
    world.watch.see(posted(1, Reveal(setup=bytes(16), number=0, own=b"", shares=())))
    assert world.watch.found == ["1 reveals before there is a certificate"]
