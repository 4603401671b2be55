"""How each neighbor's models compare with the others' over many rounds: whom to look at where somebody may lie.

A rule judges one round, and a small push in it may be honest. One that goes the same way in every round is either rare
data or a lie. Nothing is decided by this: a node raises an alarm, and people look.

Every score of a neighbor is a ratio to the median of its node's other neighbors, over about the last ten rounds, in
COORDINATES of the model that the node draws in secret: 1 is usual. `size` is how far its models are from the mean of
the others, `unlike` the larger of that and of how far they are on average, where what comes and goes cancels out.
`moves` is how far its model moves from round to round, `apart` how far it is from the node's own, now or a round ago.
Who copies that is at 0; who trains on nothing and sends back what it got is nearer to the mean than anybody who trains.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from p2pfl.aggregate.interface import Vector
from p2pfl.chance import generator

COORDINATES, ROUNDS, NEWEST = 400, 20, 0.1
"""How many values are compared, the rounds before the first judgment, and the weight of the latest one."""
UNLIKE, BACK, AGAIN = 3.6, 0.15, 0.8
"""The least `unlike` and the most `apart` (or share of `unlike`) of an alarm; how far back they must be to end it."""
FEWEST = 3
"""With fewer neighbors there are no others to compare one with."""
LOOKS_UNLIKE, SENDS_BACK, LOOKS_ALIKE = "looks-unlike", "sends-back", "looks-alike"


@dataclass(frozen=True, slots=True)
class Scores:
    """One neighbor's scores."""

    unlike: float
    size: float
    apart: float
    moves: float

    @property
    def in_words(self) -> str:
        far = f"{self.unlike:.2g} times as far from the others' as is usual, {self.apart:.2g} times from this node's"
        return f"its models are {far}, and move {self.moves:.2g} times as far from round to round"

    def verdict(self, before: str) -> str:
        """Return the kind of alarm that they are reason for; one that stands ends somewhat later."""
        least, most = (UNLIKE * AGAIN, BACK) if before == LOOKS_UNLIKE else (UNLIKE, BACK)
        if min(self.apart, self.size) <= (most / AGAIN if before == SENDS_BACK else most):
            return SENDS_BACK
        return LOOKS_UNLIKE if self.unlike >= least else ""


@dataclass(slots=True)
class Track:
    """What is remembered of one neighbor: means over rounds, of its lean (k,) and of squared lengths."""

    rounds: int = 0
    lean: Vector | float = 0.0
    squares: Vector | float = 0.0
    latest: Vector | None = None


@dataclass(slots=True)
class Likeness:
    """Compares the models that a node's neighbors show. `scores` and `news` may be read in another thread."""

    seed: int = field(default_factory=lambda: secrets.randbits(32))
    scores: Mapping[int, Scores] = field(default_factory=dict)
    """By neighbor, once it was seen for ROUNDS rounds; only ever replaced."""
    news: deque[tuple[str, int, str]] = field(default_factory=lambda: deque(maxlen=100))
    """Alarms, and their ends, that nobody has taken yet: kind, neighbor, text."""
    _tracks: dict[int, Track] = field(default_factory=dict)
    _standing: dict[int, str] = field(default_factory=dict)
    _places: Vector | None = None
    _before: Vector | None = None
    """The node's own model in the round before: what a neighbor may send back."""

    def look(self, own: Vector, others: Sequence[Vector], peers: Sequence[int]) -> None:
        """Take in one round: the node's own model (d,) and those that `peers` show."""
        if len(peers) < FEWEST:
            return
        if self._places is None:
            chosen = generator(self.seed, "likeness").choice(own.size, min(COORDINATES, own.size), replace=False)
            self._places = np.sort(chosen)
        rows = np.stack([model[self._places] for model in (own, *others)]).astype(np.float64)
        lean = (rows - (rows.sum(axis=0) - rows) / len(peers))[1:]
        own = np.stack([rows[0], rows[0] if self._before is None else self._before])
        self._before = rows[0]
        for row, (peer, shown) in enumerate(zip(peers, rows[1:], strict=True)):
            track = self._tracks.setdefault(peer, Track())
            moved = shown - (shown if track.latest is None else track.latest)
            nearer = min(part @ part for part in shown - own)
            squares = np.array([lean[row] @ lean[row], nearer, moved @ moved])
            track.lean = (1 - NEWEST) * track.lean + NEWEST * lean[row]
            track.squares = (1 - NEWEST) * track.squares + NEWEST * squares
            track.rounds, track.latest = track.rounds + 1, shown
        known = [peer for peer in peers if self._tracks[peer].rounds >= ROUNDS]
        if len(known) >= FEWEST:
            self._judge(known)

    def _judge(self, peers: Sequence[int]) -> None:
        tracks = [self._tracks[peer] for peer in peers]
        lengths = np.sqrt(
            np.array([[np.sum(np.square(track.lean)), *np.atleast_1d(track.squares)] for track in tracks])
        )
        medians = np.stack([np.median(np.delete(lengths, row, axis=0), axis=0) for row in range(len(peers))])
        if not medians.all():
            return  # all others show the same: nothing has been trained yet
        ratios = lengths / medians
        rows = zip(peers, ratios.tolist(), strict=True)
        scores = {peer: Scores(max(lean, size), size, apart, moves) for peer, (lean, size, apart, moves) in rows}
        self.scores = {**self.scores, **scores}
        for peer, score in scores.items():
            before = self._standing.get(peer, "")
            kind = score.verdict(before)
            if kind == before:
                continue
            self._standing[peer] = kind
            if before:
                self.news.append((LOOKS_ALIKE, peer, f"its models look like the others' again: {score.in_words}"))
            if kind:
                self.news.append((kind, peer, f"over {ROUNDS} rounds {score.in_words}"))

    def forget(self, peers: Collection[int]) -> None:
        """Forget peers that are no longer neighbors."""
        for peer in peers:
            self._tracks.pop(peer, None)
            self._standing.pop(peer, None)
        self.scores = {peer: scores for peer, scores in self.scores.items() if peer not in peers}
