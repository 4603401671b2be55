"""What a coalition learns of a play: all linear combinations of the others' vectors that it can work out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from p2pfl.features.sums.messages import BranchPart, Total, members_of
from sim.audits.sums.play import SumCast, SumRecord
from sim.audits.sums.probes import SPARE, Probes, Ring
from sim.audits.sums.ring import Rows, combinations_without, rank, reduced, signed
from sim.audits.sums.secrets import KnownSecrets, secrets_of
from sim.audits.sums.seen_board import ROSTER, SumBoard, board_of


class TooManyVectorsError(Exception):
    """There are not enough zeros in the vectors for all that was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalition:
    """What these members have seen, and the secrets that they can reconstruct of it."""

    members: frozenset[int]
    board: SumBoard
    known: KnownSecrets
    totals: tuple[Ring, ...]
    """The sums that they got."""
    reused: frozenset[int]
    """Of whom one secret serves more than one sum that its owner took part in."""


def coalition_of(members: Collection[int], cast: SumCast, record: SumRecord) -> Coalition:
    seen = [each for each in record.sent if each.sender in members or each.receiver in members]
    board = board_of(each.message for each in seen)
    for each in seen:
        if each.is_forged and isinstance(each.message, BranchPart | Total):
            board.forget(each.message.vector)  # they made it up, and others may have passed it back
    draws = {member: record.draws[member] for member in members}
    known = secrets_of(members, board, draws, cast.colluders + 1)
    return Coalition(
        members=frozenset(members),
        board=board,
        known=known,
        totals=tuple(done.total for at, done in record.done if at in members),
        reused=frozenset(known.reused),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCombinations:
    """`rows` span what is determined of the honest members' data; their columns are `columns` of the probes.

    `promised` span what the sums that came about tell by themselves.
    """

    honest: tuple[int, ...]
    columns: tuple[int, ...]
    rows: Rows
    promised: Rows
    free: Ring
    """Combinations without masks, in the game's entries, less what is the coalition's own; (k, d). First come those in
    which there is the victim alone.
    """

    @property
    def excess(self) -> int:
        """How many numbers more are determined, for each entry, than the sums tell."""
        return rank([*self.promised, *self.rows]) - rank(self.promised)

    def smallest(self, probes: Probes) -> tuple[int, ...]:
        """The fewest honest members of whom a combination was found; empty: nothing was.

        Exact for one member: others may be missed, as only some bases are looked at.
        """
        best: tuple[int, ...] = ()
        orders = [list(range(len(self.columns)))]
        orders.append(orders[0][::-1])
        orders += [orders[0][at:] + orders[0][:at] for at in range(1, len(self.columns))]
        for order in orders:
            for row in reduced([[row[at] for at in order] for row in self.rows]):
                owners = {probes.owner(self.columns[at]) for at, value in zip(order, row, strict=True) if value}
                if not best or len(owners) < len(best):
                    best = tuple(sorted(owners))
        return best


def learned(
    coalition: Coalition, cast: SumCast, probes: Probes, everything: SumBoard, needed: int
) -> KnownCombinations:
    """`everything` is what all members have said; `needed` is how many signatures certify a list.

    Raises TooManyVectorsError.
    """
    honest = tuple(member for member in range(cast.count) if member not in coalition.members)
    columns = tuple(sorted({probes.column(label, member) for label in probes.labels for member in honest}))
    vectors = {vector: np.frombuffer(vector, "<u8") for _, vector in coalition.board.parts}
    rows = [row for row in (*vectors.values(), *coalition.totals) if row.size == probes.size]
    masks = coalition.known.streams(coalition.board, probes.size)
    matrix = np.array([*rows, *masks.values()], "<u8").reshape(-1, probes.size)
    if len(matrix) > probes.zeros - SPARE // 2:
        raise TooManyVectorsError(f"{probes.zeros} zeros cannot tell {len(matrix)} vectors and masks apart")
    found = combinations_without(matrix[:, : probes.zeros], matrix[:, probes.zeros :])
    ones = found[:, : probes.ones.stop - probes.zeros]
    free = found[:, ones.shape[1] :] - ones @ probes.own_game(coalition.members)
    target = probes.column(probes.labels[0], probes.victim)
    others = [column for column in columns if column != target]
    alone = combinations_without(ones[:, others], np.concatenate([ones[:, [target]], free], axis=1))
    return KnownCombinations(
        honest=honest,
        columns=columns,
        rows=reduced([[row[column] for column in columns] for row in signed(ones)]),
        promised=[_of_list(*each, columns, probes) for each in certified(everything, probes, needed)],
        free=np.concatenate([_whole(alone), free]),
    )


def certified(everything: SumBoard, probes: Probes, needed: int) -> list[tuple[tuple[int, ...], str]]:
    """The members of each sum that a quorum has signed, and what was summed."""
    found = []
    for (_, number), lists in everything.certified(needed).items():
        for chosen in lists if number != ROSTER else ():
            label = probes.label_of(chosen.terms)
            if label is not None:
                found.append((members_of(chosen.members), label))
    return found


def _of_list(members: Sequence[int], label: str, columns: Sequence[int], probes: Probes) -> list[Fraction]:
    inside = {probes.column(label, member) for member in members}
    return [Fraction(int(column in inside)) for column in columns]


def _whole(rows: Ring) -> Ring:
    """Rows that begin with how often the victim is in them, without that number, and once each."""
    factors = [pow(int(row[0]), -1, 2**64) if row[0] % 2 else 1 for row in rows]
    whole: Ring = rows[:, 1:] * np.array(factors, "<u8")[:, None]
    return whole
