"""Shares, partners, certificates, histories, fixed point: each part alone, against what it must do."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.features.sums import (
    PRIME,
    Blame,
    MemberList,
    NewStatement,
    Post,
    SetupTally,
    SlotQuit,
    SlotTally,
    SlotVote,
    SpoiledSum,
    Sum,
    SumHistory,
    SumRequest,
    Tree,
    VectorReady,
    Wave,
    WholeNumbers,
    atoms,
    bits_of,
    deal,
    encode_statement,
    id_of,
    members_of,
    numbers_of,
    partners,
    quorum,
    rebuild,
    rebuild_checked,
    withstands,
)


@given(st.integers(0, PRIME - 1), st.lists(st.integers(0, PRIME - 1), max_size=4), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, line, data):
    points = list(range(1, 9))
    shares = dict(zip(points, deal(secret, line, points), strict=True))
    chosen = data.draw(st.permutations(points))[: len(line) + 1]
    assert rebuild({point: shares[point] for point in chosen}) == secret


def test_fewer_shares_than_the_threshold_tell_nothing():
    """Modulo 11, threshold 3: whatever the secret is, any two shares take each pair of values once (Shamir 1979)."""
    for secret in range(11):
        for one, other in combinations(range(5), 2):
            seen = Counter()
            for line in product(range(11), repeat=2):
                shares = deal(secret, line, [1, 2, 3, 4, 5], 11)
                seen[shares[one], shares[other]] += 1
            assert set(seen.values()) == {1}
            assert len(seen) == 121


def test_liars_about_shares_are_found_while_a_threshold_of_holders_is_honest():
    shares = dict(zip(range(1, 6), deal(77, [5, 9], [1, 2, 3, 4, 5]), strict=True))
    lies = shares | {2: 1, 5: 2}
    assert rebuild_checked(lies, 3, lambda secret: secret == 77) == 77
    assert rebuild_checked(lies | {1: 3}, 3, lambda secret: secret == 77) is None


@pytest.mark.parametrize("count", range(3, 8))
def test_two_lists_of_one_slot_are_never_both_certified(count):
    """Every way in which honest members may sign one list, the other or none, while t colluders sign both."""
    for colluders in range(1, count - 1):
        needed, honest = quorum(count, colluders), count - colluders
        for choices in product("AB-", repeat=honest):
            votes = Counter(choices)
            assert not (votes["A"] + colluders >= needed and votes["B"] + colluders >= needed)
        # One signer fewer, and there would be two.
        fewer = needed - 1
        assert 2 * max(0, fewer - colluders) <= honest


def test_a_ballot_counts_the_first_vote_of_each_signer_in_any_order():
    first, second = (
        MemberList(setup=bytes(16), number=0, members=bits_of(members), terms=b"", total=b"")
        for members in ((0, 1, 2), (1, 2, 3))
    )
    whole, names = SetupTally(3), [id_of(0, encode_statement(each)) for each in (first, second)]

    def say(author, statement):
        post = Post(author=author, body=encode_statement(statement), signature=bytes(64))
        whole.take(NewStatement(id=id_of(author, post.body), author=author, statement=statement, post=post, peer=1), 0)

    for author, place in ((0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (0, 0)):
        say(author, SlotVote(setup=bytes(16), number=0, chosen=names[place]))
    assert whole.slots[0].certified is None
    say(0, second)
    assert whole.slots[0].certified is None
    say(0, first)
    assert whole.slots[0].certified == first


@pytest.mark.long
@pytest.mark.parametrize(("count", "reach"), [(7, 4), (9, 4), (10, 6), (12, 6)])
def test_partners_that_are_left_withstand_what_networkx_says(count, reach):
    """A list is signed only if no t of its members cut the masks of the others in two: exact, for all losses."""
    circle = tuple(np.random.default_rng(count).permutation(count).tolist())
    neighbors = partners(circle, reach)
    graph = nx.Graph([(one, other) for one in neighbors for other in neighbors[one]])
    for lost in range(4):
        for gone in combinations(range(count), lost):
            left = set(range(count)) - set(gone)
            kept = graph.subgraph(left)
            for colluders in (1, 2):
                sure = all(nx.is_connected(kept.subgraph(left - set(bad))) for bad in combinations(left, colluders))
                assert withstands(circle, reach, left, colluders) == sure


def test_sums_of_the_same_data_may_not_differ_by_few_members_in_any_combination():
    history = SumHistory(3)
    everybody = frozenset(range(9))
    assert history.allows(b"x", everybody)
    history.keep(b"x", everybody)
    assert history.allows(b"x", everybody), "the same sum again tells nothing new"
    assert not history.allows(b"x", everybody - {4})
    assert not history.allows(b"x", everybody - {4, 5})
    assert history.allows(b"y", everybody - {4})
    three = everybody - {0, 1, 2}
    assert history.allows(b"x", three)
    history.keep(b"x", three)
    # Each pair of these sets differs by three or more, and yet their combination tells of member 3 alone.
    assert not history.allows(b"x", frozenset({0, 1, 2, 3}))
    assert atoms([everybody, three, frozenset({0, 1, 2, 3})])[0] == 1


@pytest.mark.parametrize(("low", "high"), [(-3, 4), (0, 50_000), (-(2**51), 2**51)])
def test_arrays_of_whole_numbers_are_summed_exactly_each_in_its_shape(low, high):
    given = {"n": np.array([low, 0, high]), "a": np.array([[high], [low]]), "one": np.array(1)}
    numbers = numbers_of(given, low, high, 5)
    total = sum((numbers.encode(given) for _ in range(3)), np.zeros(numbers.size, "<u8"))
    found = numbers.decode(total, 3)
    assert {name: array.tolist() for name, array in found.items()} == {n: (3 * a).tolist() for n, a in given.items()}
    assert {array.dtype for array in found.values()} == {np.dtype(np.int64)}
    assert numbers.terms("x") != numbers_of({"n": given["n"]}, low, high, 5).terms("x") != numbers.terms("y")


def test_a_value_out_of_bounds_and_bounds_that_do_not_fit_are_refused():
    for low, value in ((0, 8), (1, 0)):
        with pytest.raises(ValueError, match=f"an entry below {low}, above 7"):
            numbers_of({"x": np.array([1, 8])}, low, 7, 4).encode({"x": np.array([1, value])})
    with pytest.raises(ValueError, match="reaches 2\\^63"):
        numbers_of({}, 0, 2**40, 2**24)


@given(st.data())
def test_numbers_side_by_side_add_up_whatever_the_members_and_the_bounds_of_their_sums_are(data):
    """Each word has its highest bits free for carries, also where a number fills three words or all give the most."""
    members = data.draw(st.sampled_from([2, 3, 4, 17, 2047]))
    most = np.array(data.draw(st.lists(st.integers(0, 63).flatmap(lambda bits: st.integers(0, 2**bits - 1)))), np.int64)
    count = min(members, 5)
    cuts = np.array([[int(data.draw(st.floats(0, 1)) * int(each)) for each in most] for _ in range(count - 1)])
    cuts = np.sort(np.minimum(cuts.reshape(count - 1, -1), most), axis=0).astype(np.int64)
    parts = np.diff(np.concatenate([np.zeros_like(most)[None], cuts, most[None]]), axis=0)
    numbers = WholeNumbers(members=members, most={"x": most})
    total = np.sum([numbers.encode({"x": part}) for part in parts], axis=0, dtype="<u8")
    assert numbers.decode(total, count)["x"].tolist() == most.tolist()
    bits = int(np.frexp(most.astype(np.float64))[1].sum())
    assert numbers.size == 1 + -(-bits // (64 - (members - 1).bit_length()))


def test_a_sum_that_no_values_within_the_bounds_have_is_spoiled():
    numbers = WholeNumbers(members=4, most={"x": np.array([20, 40])})
    total = numbers.encode({"x": np.array([20, 40])})
    assert numbers.decode(total, 2)["x"].tolist() == [20, 40]
    for garbage in (total + np.uint64(1), total + np.array([1, 0], "<u8"), np.array([2**63, 5], "<u8")):
        with pytest.raises(SpoiledSum, match="no values within the bounds"):
            numbers.decode(garbage, 2)


@given(st.sets(st.integers(0, 300)))
def test_sets_of_members_survive_their_way(members):
    assert members_of(bits_of(members)) == tuple(sorted(members))


def slot(*statements, needed=3):
    """What member 0 of four has of a sum for which it has given a vector, once it has heard all this."""
    tally = SlotTally(needed=needed)
    setup = SimpleNamespace(id=bytes(16), settings=SimpleNamespace(index=0, count=4))
    each = Sum(setup, 0, tally, Tree(), SumHistory(3), 0.0, Blame(0))
    each.asked = SumRequest(label="x", values=np.zeros(1, "<u8"), terms=bytes(32), data=bytes(32), pause_s=0.0, at=0.0)
    whole = SetupTally(needed)
    whole.slots[0] = tally
    for author, statement in statements:
        body = encode_statement(statement)
        post = Post(author=author, body=body, signature=bytes(64))
        name = id_of(author, body)
        whole.take(NewStatement(id=name, author=author, statement=statement, post=post, peer=1), 0)
    return each


def test_a_vector_that_left_its_member_may_be_in_a_sum_until_enough_have_given_it_up_or_it_is_left_out():
    wave = (1, Wave(setup=bytes(16), number=0, epoch=0, terms=bytes(32)))
    others = (1, Wave(setup=bytes(16), number=0, epoch=0, terms=b"\x01" * 32))
    quits = [(member, SlotQuit(setup=bytes(16), number=0, reason="late")) for member in range(3)]

    def certified(*members):
        bits = bits_of(frozenset(members))
        chosen = MemberList(setup=bytes(16), number=0, members=bits, terms=bytes(32), total=bytes(32))
        name = id_of(1, encode_statement(chosen))
        return [(1, chosen), *((m, SlotVote(setup=bytes(16), number=0, chosen=name)) for m in (1, 2, 3))]

    for said, is_out in (
        ([], False),
        ([others], False),
        ([wave], True),
        ([wave, *quits[:2]], True),
        ([wave, *quits], False),
        ([wave, *certified(0, 1, 2)], True),
        ([wave, *certified(1, 2, 3)], False),
    ):
        each = slot(*said)
        assert each.is_out() == is_out
        assert each.must_end_here() == (is_out or len(said) > 3)
    each = slot((2, VectorReady(setup=bytes(16), number=0, terms=bytes(32))))
    each.refuse("")
    assert each.outcome.missing == (0, 1, 3)
