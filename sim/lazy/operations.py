"""What is to be done to one node's vectors: what `control` notes and `plane` puts in order for `rows`."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from p2pfl.core.effects import Mix

BEGIN, COMMIT, FREEZE, REQUEST, REPLY, SKETCH, RESET, MIX = range(8)
KINDS = 8


class BeginOp(Struct, frozen=True, gc=False):
    """A local round begins. `accompanied` and `away` are those of `StartRound`; `samples` is n, `elapsed_s` the time
    trained so far.
    """

    kind: ClassVar[int] = BEGIN
    index: int
    accompanied: bool
    samples: int
    elapsed_s: float = 0.0
    away: tuple[int, ...] = ()


class CommitOp(Struct, frozen=True, gc=False):
    """The round becomes part of the model. The fields are those of a method's `Round`."""

    kind: ClassVar[int] = COMMIT
    steps: int
    learning_rate: float
    samples: int
    rho: float


class FreezeOp(Struct, frozen=True, gc=False):
    """The initiator encodes its request number `ticket`, once the one numbered `after` is applied.

    `unmixed`: it shows the model before the latest mix. `lie` counts what a liar has shown, -1 for the truth; `chance`
    is for an encoder that draws.
    """

    kind: ClassVar[int] = FREEZE
    edge: int
    pair: int
    after: int
    lie: int
    ticket: int
    chance: int = 0
    unmixed: bool = False


class RequestOp(Struct, frozen=True, gc=False):
    """The responder applies a request: with mixing factor and terms as both ends agreed, `samples` its own n."""

    kind: ClassVar[int] = REQUEST
    edge: int
    pair: int
    ticket: int
    lie: int
    factor: float
    samples: int
    terms: tuple[float, ...]
    chance: int = 0
    unmixed: bool = False


class ReplyOp(Struct, frozen=True, gc=False):
    """The initiator applies the reply."""

    kind: ClassVar[int] = REPLY
    edge: int
    pair: int
    ticket: int
    factor: float
    samples: int
    terms: tuple[float, ...]


class SketchOp(Struct, frozen=True, gc=False):
    """Note where the model is, in closing round `tick`."""

    kind: ClassVar[int] = SKETCH
    tick: int


class ResetOp(Struct, frozen=True, gc=False):
    """What one `end` of an edge keeps is dropped: 2 edge for the initiator's, 2 edge + 1 for the responder's."""

    kind: ClassVar[int] = RESET
    end: int


class MixOp(Struct, frozen=True, gc=False):
    """A robust rule mixes the model with replicas. `pairs` has, for each peer of the effect, the pair whose initiator
    that is, or -1 - edge where this node is the initiator.
    """

    kind: ClassVar[int] = MIX
    effect: Mix
    pairs: tuple[int, ...]


Exchange = RequestOp | ReplyOp
Op = BeginOp | CommitOp | FreezeOp | RequestOp | ReplyOp | SketchOp | ResetOp | MixOp
