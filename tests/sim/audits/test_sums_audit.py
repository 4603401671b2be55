"""The audit of sums: it finds every planted mistake, and nothing in the protocol as it is."""

from __future__ import annotations

import numpy as np
import pytest

from p2pfl.features.sums import arithmetic
from p2pfl.features.sums.messages import SlotVote, SumSettings
from p2pfl.features.sums.setup import SetupSecrets, SumSetup
from p2pfl.features.sums.summing import Sum
from p2pfl.learn.privacy.draws import Seeded
from p2pfl.learn.privacy.gaussian import UNIT
from sim.audits.sums.auditor import SumsAuditor, SumsEffort
from sim.audits.sums.combinations import coalition_of, learned
from sim.audits.sums.deeds import DEEDS
from sim.audits.sums.game import surprise
from sim.audits.sums.noise import check_noise
from sim.audits.sums.play import SumCast, SumPlay
from sim.audits.sums.probes import Probes, zeros_needed
from sim.audits.sums.ring import combinations_without, rank, reduced, signed
from sim.audits.sums.seen_board import board_of

SETUP = "p2pfl.features.sums.setup"
FAST = SumsEffort(coalitions=4, beyond=1, deaths=1, casts=1, tosses=400)
ONE_PLAY = SumsEffort(coalitions=1, beyond=1, deaths=0, casts=1, tosses=200)
BREAKING = {"misplaced", "last wave", "hollow", "other keys", "empty parcels"}
"""Deeds by which one member stops or spoils the sums of the others, and learns nothing."""
SAFE = [name for name in DEEDS if name not in BREAKING]


def cast_of(count=5, colluders=1, edges=None, **changes):
    ring = {(min(a, b), max(a, b)) for a in range(count) for b in [(a + 1) % count]}
    names = tuple(f"node{index}" for index in range(count))
    return SumCast(names=names, edges=tuple(sorted(edges or ring)), colluders=colluders, least=colluders + 2, **changes)


def complete(count):
    return [(a, b) for b in range(count) for a in range(b)]


def audited(cast=None, victim=None, deeds=(), effort=FAST, seed=1):
    cast = cast or cast_of()
    return SumsAuditor(cast, cast.count - 1 if victim is None else victim, seed=seed, effort=effort, deeds=deeds).run()


def one_of(found, text):
    return any(text in mistake for mistake in found.mistakes)


def test_as_it_is_a_member_learns_sums_and_two_together_all_of_a_third():
    found = audited(deeds=["two lists", "claimed death", "same data again"])
    assert found.mistakes == []
    assert found.held == 1
    assert found.learn(found.sizes[2]) == "the vector of node4"
    assert found.sizes[2].guesses.advantage == 1.0
    low, high = found.sizes[1].guesses.interval()
    assert low < 0 < high
    assert "up to 1 that was tried learned more than the sum of the others (promised is 1)" in found.summary()[0]
    assert {deed.name for deed in found.deeds} == {"two lists", "claimed death", "same data again"}


@pytest.mark.parametrize("deed", ["silenced", "replay", "restart", "chaos"])
def test_no_deed_makes_the_honest_reveal_more(deed):
    assert audited(deeds=[deed], effort=ONE_PLAY).mistakes == []


@pytest.mark.long
@pytest.mark.parametrize("edges", [None, complete(7)])
@pytest.mark.timeout(600)
def test_seven_hold_against_two_in_every_deed(edges):
    effort = SumsEffort(coalitions=12, deaths=3, casts=2, tosses=2000, budget_s=500)
    found = audited(cast_of(7, 2, edges), deeds=SAFE, effort=effort)
    assert found.mistakes == []
    assert found.held == 2


def test_the_deeds_do_what_they_say():
    """Of the claimed death a list without the victim is certified; the same data again are refused."""
    found = audited(deeds=["claimed death", "same data again"])
    done = {row.name: (row.sums, row.of) for row in found.deeds}
    assert done == {"claimed death": (8, 8), "same data again": (4, 8)}
    death = next(row for row in found.deeds if row.name == "claimed death")
    assert 4 not in death.best.smallest


# One member of five tries to stop or to spoil everybody's sums.


def test_a_total_out_of_place_breaks_no_member():
    assert audited(deeds=["misplaced"], effort=ONE_PLAY).mistakes == []


def test_after_a_last_wave_honest_members_are_not_taken_for_liars():
    assert audited(deeds=["last wave"], effort=ONE_PLAY).mistakes == []


def test_a_sum_has_as_many_entries_as_its_summands():
    assert audited(deeds=["hollow"], effort=ONE_PLAY).mistakes == []


def test_one_member_with_other_keys_does_not_keep_the_others_from_summing():
    found = audited(deeds=["other keys"], effort=ONE_PLAY)
    assert found.deeds[0].sums == found.deeds[0].of


@pytest.mark.long
def test_a_parcel_with_nothing_in_it_breaks_no_member():
    assert audited(deeds=["empty parcels"], effort=ONE_PLAY).mistakes == []


# Planted mistakes.


def test_a_seed_used_twice_is_found(monkeypatch):
    own, pair = arithmetic.own_seed, arithmetic.pair_seed
    monkeypatch.setattr(f"{SETUP}.own_seed", lambda _, setup, __: own(b"s" * 32, setup, 0))
    monkeypatch.setattr(f"{SETUP}.pair_seed", lambda _, setup, __, ends: pair(b"s" * 32, setup, 0, ends))
    assert one_of(audited(), "can work out a combination of the vectors of")


def test_a_secret_that_serves_two_sums_is_found(monkeypatch):
    true = SetupSecrets.__init__

    def once(self, draw, sums):
        true(self, draw, sums)
        self.seeds = [self.seeds[0]] * sums

    monkeypatch.setattr(SetupSecrets, "__init__", once)
    assert one_of(audited(), "serves more than one sum")


def test_masks_that_are_not_cancelled_after_a_death_are_found(monkeypatch):
    true = SumSetup.needs
    monkeypatch.setattr(SumSetup, "needs", lambda self, members: [each for each in true(self, members) if each[1]])
    assert one_of(audited(effort=SumsEffort(coalitions=1, deaths=4, tosses=200)), "has a sum that is not that of")


def test_two_survivor_lists_are_found(monkeypatch):
    """All sign whatever they are shown."""
    monkeypatch.setattr(Sum, "has_voted", lambda _: False)
    monkeypatch.setattr(Sum, "_vote", sign_all)
    monkeypatch.setattr(Sum, "_tire", lambda *_: iter(()))
    assert one_of(audited(cast_of(5, 1, complete(5)), deeds=["two lists"]), "signs two lists of one sum")


def sign_all(self, *_):
    done = self.__dict__.setdefault("signed_by_mistake", set())
    for name, proposal in list(self._tally.lists.items()):
        if name not in done and self._tree.total(proposal.total) is not None:
            done.add(name)
            yield SlotVote(setup=self.setup.id, number=self.number, chosen=name)
        elif name not in done:
            self.missing_total = proposal.total


def test_shares_of_a_living_members_mask_key_are_found(monkeypatch):
    """Node 4 says nothing about itself, as if it had died after it signed; holders then tell the wrong kind."""
    true, own = SumSetup.share, SumSetup.own_secret
    monkeypatch.setattr(SumSetup, "share", lambda *each, in_list: true(*each, in_list=not in_list))
    monkeypatch.setattr(
        SumSetup,
        "own_secret",
        lambda self, *each, **of: b"" if self.settings.index == 3 else own(self, *each, **of),
    )
    monkeypatch.setattr(SumSetup, "erase", lambda *_: None)
    found = audited(deeds=["claimed death", "silenced"])
    assert one_of(found, "can tell both secrets of") or one_of(found, "can work out a combination")


def test_masks_between_partners_that_are_left_out_are_found(monkeypatch):
    """Then the seed that a member reveals of its own unmasks it."""
    monkeypatch.setattr(SumSetup, "_pair_stream", lambda *each: np.zeros(each[-1], "<u8"))
    assert one_of(audited(cast_of(5, 1, complete(5))), "can work out a combination of the vectors of")


def test_a_threshold_of_as_many_shares_as_there_are_colluders_is_found(monkeypatch):
    monkeypatch.setattr(SumSettings, "threshold", property(lambda self: self.colluders))
    assert one_of(audited(), "can tell both secrets of")


def test_masks_without_their_last_bit_are_found(monkeypatch):
    true = arithmetic.stream
    monkeypatch.setattr(f"{SETUP}.stream", lambda seed, size: true(seed, size) & ~np.uint64(1))
    assert one_of(audited(cast_of(5, 1, complete(5))), "can work out a combination of the vectors of")


def test_masks_of_half_the_width_are_found(monkeypatch):
    true = arithmetic.stream
    monkeypatch.setattr(f"{SETUP}.stream", lambda seed, size: true(seed, size) >> np.uint64(32))
    found = audited(cast_of(5, 1, complete(5)))
    assert one_of(found, "is not as good as random")


# Noise.


def share(member, label, entries, deviation=20.0):
    """A stand-in for shared noise: a rounded Gaussian."""
    chance = np.random.default_rng([member, int(label[-1])])
    return np.rint(chance.normal(0, deviation, entries)).astype(np.int64)


CLAIMED = dict.fromkeys(range(5), 20.0**2)


def test_noise_of_all_members_is_as_much_as_they_claim():
    found = check_noise(cast_of(), share, CLAIMED)
    assert found.mistakes == []
    assert found.total == pytest.approx(1.0, abs=0.1)


def test_discrete_gaussians_as_nodes_draw_them_are_as_much_as_they_claim():
    def drawn(member, label, entries):
        return Seeded(7).of_round(member, int(label[-1])).noise(entries)

    assert check_noise(cast_of(), drawn, dict.fromkeys(range(5), float(UNIT) ** 2)).mistakes == []


def test_noise_left_out_by_one_member_is_found_in_the_sum_and_by_all_others():
    def lazy(member, label, entries):
        return share(member, label, entries) * (member != 3)

    mistakes = check_noise(cast_of(), lazy, CLAIMED).mistakes
    assert "node3 adds 0.00 times the noise that it claims, as all others can tell together" in mistakes
    assert mistakes[0] in {f"the sum has 0.{part} times the noise that its members claim" for part in range(76, 85)}
    assert len(mistakes) == 2


def test_too_little_noise_and_the_same_noise_twice_are_found():
    def less(member, label, entries):
        return share(member, label, entries, 20.0 if member else 17.0)

    assert any("node0 adds 0.7" in mistake for mistake in check_noise(cast_of(), less, CLAIMED).mistakes)
    again = check_noise(cast_of(), lambda member, _, entries: share(member, "noise 1", entries), CLAIMED)
    assert again.mistakes == ["the noise of two sums is alike (correlation 1.00)"]


# What the attacks are made of.


def test_combinations_without_masks_are_all_found_and_no_others():
    chance = np.random.default_rng(1)
    masked = chance.integers(0, 2**64, (4, 80), dtype="<u8")
    a, b, c, d = masked
    rows = np.array([a, a + b, b, c, 2 * d, c + 4 * d + a])
    found = reduced(signed(combinations_without(rows, np.eye(6, dtype="<u8"))))
    assert rank(found) == 3, "and the last bit of d"
    for true in ([1, -1, 1, 0, 0, 0], [-1, 0, 0, -1, -2, 1], [0, 0, 0, 0, 1, 0]):
        assert rank([*found, true]) == 3
    assert rank([*found, [1, 0, 0, 0, 0, 0]]) == 4


def test_bytes_that_are_random_are_no_surprise():
    words = np.random.default_rng(2).integers(0, 2**64, 4000, dtype="<u8")
    assert abs(surprise(words)) < 4
    assert surprise(words % np.uint64(2**60)) > 20


def test_colluders_rebuild_secrets_from_one_share_more_than_there_may_be_of_them():
    cast = cast_of(6, 2, complete(6))
    probes = Probes(6, ["a"], zeros=zeros_needed(6, 15, 1), tosses=100, victim=5, seed=3)
    play = SumPlay(cast, probes, seed=3)
    record = play.run()
    everything = board_of(each.message for each in record.sent)
    for members, is_all in (((0, 1), False), ((0, 1, 2), True)):
        coalition = coalition_of(members, cast, record)
        assert bool([place for place in coalition.known.masks if place[2] not in members]) == is_all
        found = learned(coalition, cast, probes, everything, 5)
        assert bool(found.excess) == is_all
        assert len(found.smallest(probes)) == (1 if is_all else 4)
