"""What a node believes of the others' progress."""

import sys
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from p2pfl.core.members import Census, bitmap

sys.path.insert(0, str(Path(__file__).parent))
from core_kit import settings

members = st.integers(0, 2**8 - 1)
WORDS = st.lists(st.tuples(st.sampled_from((1, 2, 3)), members, members, st.sampled_from((0, 5, 10))), max_size=30)


@given(WORDS)
@example([(1, 4, 4, 5), (1, 0, 0, 0), (2, 8, 0, 10)])
@example([(1, 4, 4, 5), (1, 12, 12, 5)])
def test_a_neighbors_news_merged_alone_give_the_same_sets_as_all_that_was_ever_said(words):
    """Also where neighbors plan fewer rounds, so that who they say is through does not count yet."""
    alone, anew = (Census(0, (1, 2, 3), settings(rounds=10, members=8)) for _ in range(2))
    for now, (peer, begun, through, bound) in enumerate(words):
        anew._all_anew = True
        for census in (alone, anew):
            census.hear(peer, 0, bitmap(begun), bitmap(through), float(now), bound=bound)
        assert (alone.begun, alone.through, alone.digest) == (anew.begun, anew.through, anew.digest)
        assert alone.claims == anew.claims


def test_complete_sets_are_kept_once_in_a_process():
    everyone = bitmap((1 << 70) - 1)
    one, other = (Census(index, (1, 2, 3), settings(rounds=10, members=70)) for index in (0, 69))
    for census in (one, other):
        for now, peer in enumerate((1, 2, 3)):
            census.hear(peer, 0, everyone, everyone, float(now), bound=10)
        census.complete(3.0)
    assert one.begun is other.begun is one.through is other.through is one.claims[3].begun
    assert one.tell(1)[0] is other.tell(2)[1]
