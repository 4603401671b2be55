"""The growth of trees, a state machine: a part goes out, its sum comes in. See the head of the package. And what a node
makes of it: `model = "trees"` of the task `csv` as a learner, and as a stand-alone model. No torch.

The learner's vector is only the number of rounds; the trees are what it keeps beside it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, PeerFault, UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.intervals import wilson
from p2pfl.learn.metrics import ACCURACY, BUILT_IN, measured_by
from p2pfl.learn.table.reading import Table
from p2pfl.learn.table.schema import BALANCED, Schema, weights_given
from p2pfl.learn.table.scoring import ScoresTables, reading_of, schema_and_codes, unreadable
from p2pfl.learn.table.task import OF_TREES, TableTask, split_rows
from p2pfl.learn.task import NodeContext
from p2pfl.learn.trees.forest import (
    DIVISIONS,
    KEYS,
    LEAF,
    LOSSES,
    MOST_ENTRIES,
    SUMS,
    BinGrid,
    Cells,
    DecisionTree,
    Forest,
    Splitter,
    TreeSettings,
    divided,
    edges_of,
    first_cuts,
    number_of,
    raw_cells,
    tree_settings,
)
from p2pfl.learn.trees.levels import Leaf, Level
from p2pfl.learn.trees.state import (
    BITS,
    CLIP_BITS,
    LOSS_BITS,
    MOST_ROWS,
    Growing,
    GrowthState,
    Histograms,
    Loss,
    SiteRows,
    Whole,
    base_margins,
    step_bits,
    weights_of,
)

FINEST = float(np.finfo(np.float32).tiny)


class WrongSum(PeerFault):
    """A sum that no parts can have: some member's part was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePart:
    """One node's summand: arrays of whole numbers. Names and shapes are the same at all nodes.

    `step` counts the parts from 0, and `label` says in words what is summed. `data` (32 bytes) is the same in all parts
    of the same rows, and is for the node's own eyes: to the rule about sums of the same data all parts are the same.
    """

    step: int
    label: str
    data: bytes
    arrays: Mapping[str, Whole]


class TreeGrowth:
    """One node's share. `site` has its rows; a node without rows has none in it, and follows all the same."""

    def __init__(self, state: GrowthState, site: SiteRows) -> None:
        self.state = state
        self._site = site
        self._part: TreePart | None = None
        self._known: tuple[int, Level] | None = None
        """The present level, and the step at which it was looked at."""

    @classmethod
    def begin(cls, schema: Schema, settings: TreeSettings, site: SiteRows) -> TreeGrowth:
        """Begin without trees; `tree_settings` has checked that the schema suits them."""
        columns = len(schema.numeric) + (settings.objective == "squared")
        cuts = [first_cuts() for _ in range(columns)]
        return cls(GrowthState(settings=settings, cuts=cuts, sizes=_sizes(schema)), site)

    @classmethod
    def unpack(
        cls,
        packed: bytes | memoryview,
        schema: Schema,
        settings: TreeSettings,
        site: SiteRows,
        rounds: list[list[DecisionTree]] | None = None,
    ) -> TreeGrowth:
        """Go on from `pack()`, of this node or another; or from `pack_present()`, behind these rounds.

        Raises ValueError: these bytes are no state, or one of other settings or columns.
        """
        state = GrowthState.unpack(packed, rounds)
        if state.settings != settings:
            raise ValueError("a state of trees with other settings")
        columns = len(state.cuts) - (settings.objective == "squared") if state.grid is None else len(state.grid.edges)
        sizes = {state.sizes, _sizes(schema), state.sizes if state.grid is None else state.grid.sizes}
        if columns != len(schema.numeric) or len(sizes) > 1:
            raise ValueError("a state of trees with other columns")
        return cls(state, site)

    def pack(self) -> bytes:
        """Return the state, which is the same at all nodes that have taken the same sums."""
        return msgspec.msgpack.encode(self.state)

    def pack_present(self) -> bytes:
        """Return the state without the trees of whole rounds."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self.state, rounds=[]))

    @property
    def done(self) -> bool:
        return self.state.done

    def forest(self) -> Forest:
        """Return the model of all rounds, or of the best ones. Raises ValueError: there are no bins yet."""
        return self.state.forest()

    @property
    def label(self) -> str:
        """Return in words what the next sum is of."""
        state = self.state
        if state.grid is None:
            return f"bins {state.divisions + 1} of {DIVISIONS + 1}"
        if len(state.rounds) == state.settings.rounds:
            return "loss"
        return f"round {len(state.rounds) + 1}, level {state.growing.level + 1}"

    def most(self, members: int) -> dict[str, Whole]:
        """Return the largest that each entry of the next sum, of so many members, can be; none is below 0.

        Names and shapes are those of the parts, too; all follows from the state.
        """
        state, most_rows = self.state, members * MOST_ROWS
        rows = state.row_count or most_rows
        if state.grid is None:
            targets = np.full(state.settings.classes, rows) if state.settings.classes else [rows << BITS + 1, rows]
            return {"targets": np.array(targets), "buckets": np.full(sum(map(len, state.cuts)), rows)}
        most = {"losses": np.array([most_rows << BITS, most_rows] * 2)} if self._is_begun else {}
        is_last = len(state.rounds) == state.settings.rounds
        return most if is_last else most | self._level(state.grid).most(members)

    @property
    def _is_begun(self) -> bool:
        """True if the next sum is the first one of a round, or of the end."""
        return not self.state.growing.level and not self.state.growing.decided

    def next_part(self) -> TreePart:
        """Return this node's summand of the next sum; the same one until that is taken."""
        if self.state.done:
            raise ValueError("the trees have grown")
        if self._part is None or self._part.step != self.state.step:
            site = self._site
            self._part = TreePart(step=self.state.step, label=self.label, data=site.data, arrays=self._make())
        return self._part

    def take(self, total: Mapping[str, NDArray[np.int64]], members: int) -> None:
        """Take the sum of the parts of so many members, and decide.

        Raises WrongSum: no parts have this sum; UserError: there are too few rows. The state is then as before.
        """
        state, most = self.state, self.most(members)
        if {name: array.shape for name, array in total.items()} != {name: each.shape for name, each in most.items()}:
            raise WrongSum(f"step {state.step}: other names or shapes than those of the parts")
        for name, array in total.items():
            if ((array < 0) | (array > most[name])).any():
                raise WrongSum(f"step {state.step}: {name} is beyond what {members} members can have")
        if state.grid is None:
            self._take_counts(total)
        else:
            self._take_level(total, state.grid, members * MOST_ROWS)
        state.step += 1

    def ask_in_full(self) -> None:
        """After a wrong sum, which may be due to an earlier one: let nothing of the next follow from those before."""
        state = self.state
        state.growing.above, state.root_rows, state.row_count = Histograms(), b"", 0
        state.step += 1

    def _make(self) -> dict[str, Whole]:
        """Make the arrays. What is larger than the sum of all can be, as an earlier one was wrong, is cut off."""
        state, site = self.state, self._site
        if state.grid is None:
            arrays = site.counts(state)
        else:
            arrays = {"losses": site.losses(state)} if self._is_begun else {}
            if len(state.rounds) < state.settings.rounds:
                level = self._level(state.grid)
                arrays |= level.part(site.histograms(state, state.grid, level.asked)[:, :, _bins(state.grid)])
        most = self.most(1)
        return {name: np.minimum(array, most[name]) for name, array in arrays.items()}

    def _level(self, grid: BinGrid) -> Level:
        if self._known is None or self._known[0] != self.state.step:
            fit = (MOST_ENTRIES - LOSSES) // (SUMS * sum(grid.widths))
            self._known = self.state.step, Level(self.state, grid, fit)
        return self._known[1]

    # -- bins

    def _take_counts(self, total: Mapping[str, Whole]) -> None:
        state, settings, targets = self.state, self.state.settings, total["targets"].tolist()
        regression = settings.objective == "squared"
        rows = targets[1] if regression else sum(targets)
        if regression:
            targets[0] -= rows << BITS
            _refuse_beyond(np.array(targets[0]), total["targets"][1])
        if rows < settings.least_rows:
            if state.step or self._site.trained >= settings.least_rows:
                raise WrongSum("fewer rows than there are")
            allowed = f"at least {settings.least_rows} (least_rows)"
            raise UserError("too few rows at all nodes together", value=rows, allowed=allowed)
        ends = list(accumulate(map(len, state.cuts)))[:-1]
        counts = np.split(total["buckets"], ends) if state.cuts else []
        known = [int(each.sum()) for each in counts]
        if max(known, default=0) > rows or (regression and known[-1] != rows):
            raise WrongSum("columns have other numbers of rows than there are")
        pairs = list(zip(state.cuts, counts, strict=True))
        state.row_count = rows
        if state.divisions < DIVISIONS:
            state.divisions += 1
            if regression:
                state.target.center, state.target.scale = _center_and_scale(*pairs[-1], settings)
            state.cuts = [divided(cuts, count, settings.bins) for cuts, count in pairs]
            return
        edges = (
            tuple(edges_of(cuts, count, settings.bins, settings.least_rows))
            for cuts, count in pairs[: len(pairs) - regression]
        )
        state.weights = weights_of(settings, targets)
        state.bits = step_bits(settings, state.weights)
        mean = math.ldexp(targets[0], CLIP_BITS - BITS) / rows
        state.base = [mean] if regression else base_margins(settings, targets, state.weights)
        state.grid, state.cuts = BinGrid(edges=tuple(edges), sizes=state.sizes), []

    # -- trees

    def _take_level(self, total: Mapping[str, Whole], grid: BinGrid, most_rows: int) -> None:
        state = self.state
        level = self._level(grid) if "rows" in total else None
        sums = None if level is None else level.whole(total)
        histograms = None if sums is None else _histograms(sums, grid, most_rows)
        stops = "losses" in total and self._look_at_losses(total["losses"])
        if level is None or sums is None or histograms is None or stops:
            state.done = True
            return
        leaves, had_split = level.leaves, len(state.growing.below)
        if not state.growing.trees:
            state.growing.trees = [DecisionTree.root() for _ in range(state.settings.outputs)]
            state.growing.frontier = [(output, 0) for output in range(state.settings.outputs)]
        self._split(leaves, histograms, grid)
        if not state.growing.level:
            state.root_rows = sums[2, 0].astype("<i8").tobytes()
        below = set(state.growing.below[had_split:])
        for (output, node), each in zip(leaves, sums.swapaxes(0, 1), strict=True):
            tree = state.growing.trees[output]
            left = tree.lefts[node]
            if tree.columns[node] != LEAF and {(output, left), (output, left + 1)} & below:
                state.growing.here.add((output, node), each)
        state.growing.decided += len(leaves)
        if state.growing.decided == len(state.growing.frontier):
            state.growing.frontier, state.growing.below, state.growing.decided = state.growing.below, [], 0
            state.growing.above, state.growing.here = state.growing.here, Histograms()
            state.growing.level += 1
            if not state.growing.frontier:
                self._end_round()

    def _split(self, leaves: Sequence[Leaf], histograms: Whole, grid: BinGrid) -> None:
        state, settings = self.state, self.state.settings
        splitter = Splitter(settings=settings, grid=grid, bits=state.bits, scale=state.target.scale)
        for (output, node), split, histogram in zip(leaves, splitter.best(histograms), histograms, strict=True):
            tree = state.growing.trees[output]
            if not state.growing.level:
                sums = histogram[0].sum(axis=0)
                tree.weigh(node, sums if sums[2] >= settings.least_rows else np.zeros_like(sums), splitter)
            if split is None:
                continue
            children = tree.split(node, split, splitter)
            for child, sums in zip(children, (split.left, split.right), strict=True):
                if state.growing.level + 1 < settings.max_depth and sums[2] >= 2 * settings.least_rows:
                    state.growing.below.append((output, child))

    def _end_round(self) -> None:
        """Keep the round's trees; if none has a split, no further one will."""
        state = self.state
        if all(len(tree) == 1 for tree in state.growing.trees):
            state.done = True
        else:
            state.rounds.append(state.growing.trees)
        state.growing = Growing()

    def _look_at_losses(self, sums: Whole) -> bool:
        """Note the losses; return True if it is time to stop. Raises UserError: no node holds out rows for that."""
        _refuse_beyond(sums[::2], sums[1::2], least=0)
        state, patience = self.state, self.state.settings.patience
        bits = LOSS_BITS[state.settings.objective] - BITS
        trained, rows, held, others = sums.tolist()
        if patience and not others and not state.losses:
            if self._site.held:
                raise WrongSum("no row held out, where this node has some")
            text = "no row is held out at any node"
            raise UserError(text, key="task.patience", value=patience, allowed="a holdout above 0, or no patience")
        loss = Loss(
            *(math.ldexp(each, bits) / count if count else None for each, count in ((trained, rows), (held, others)))
        )
        state.losses.append(loss)
        return bool(patience) and len(state.rounds) - state.best >= (patience or 0)


def _sizes(schema: Schema) -> tuple[int, ...]:
    return tuple(map(len, schema.categories.values()))


def _bins(grid: BinGrid) -> NDArray[np.bool_]:
    """Return the mask (columns, bins) of the bins that exist."""
    widths = np.array(grid.widths)
    return np.arange(widths.max()) < widths[:, None]


def _refuse_impossible(counts: Whole, most_rows: int) -> None:
    """Raises WrongSum: these are no numbers of rows."""
    if int(counts.min(initial=0)) < 0 or int(counts.max(initial=0)) > most_rows:
        raise WrongSum("a count below 0, or of more rows than the members can have")


def _refuse_beyond(sums: Whole, rows: Whole, least: int = -1) -> None:
    """Raises WrongSum: so many rows cannot have these sums; the entry of one is from `least` to 1, times 2^`BITS`."""
    if ((sums < least * (rows << BITS)) | (sums > (rows << BITS))).any():
        raise WrongSum("a sum beyond what its rows can have")


def _histograms(sums: Whole, grid: BinGrid, most_rows: int) -> Whole:
    """Return the sums (leaves, columns, bins, 3) of (3, leaves, bins), gradients as they are.

    Raises WrongSum: no rows have them, or columns disagree.
    """
    gradients, hessians, rows = sums[0] - (sums[2] << BITS), sums[1], sums[2]
    _refuse_impossible(rows, most_rows)
    _refuse_beyond(gradients, rows)
    _refuse_beyond(hessians, rows, least=0)
    mask = _bins(grid)
    found = np.zeros((len(rows), *mask.shape, SUMS), np.int64)
    found[:, mask] = np.stack([gradients, hessians, rows], axis=-1)
    by_column = found.sum(axis=2)
    if (by_column != by_column[:, :1]).any() or int(by_column[..., 2].max(initial=0)) > most_rows:
        raise WrongSum("the columns of a sum disagree, or have more rows than the members can have")
    return found


def _center_and_scale(cuts: list[int], counts: Whole, settings: TreeSettings) -> tuple[float, float]:
    """Return about the median of the target, and a power of two above the range of nearly all of its values."""
    edges = edges_of(cuts, counts, settings.bins, settings.least_rows)
    full = np.flatnonzero(counts)
    ends = [*cuts[1:], KEYS]
    low, high = number_of(cuts[full[0]]), number_of(ends[full[-1]] - 1)
    center = edges[len(edges) // 2] if edges else low
    span = edges[-1] - edges[0] if len(edges) > 1 else max(abs(low), abs(high))
    return center, math.ldexp(1.0, math.frexp(max(span, FINEST))[1])


FOREST = "forest"
"""The name of the array with the packed trees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrees(ScoresTables):
    schema: Schema
    missing: Mapping[str, Sequence[str]]
    forest: Forest

    @classmethod
    def of(cls, preprocessing: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> TableTrees:
        """Build a model. Raises UserError: the trees or the preprocessing do not belong to one, or none has grown."""
        try:
            schema, missing = schema_and_codes(preprocessing)
            packed = state[str(preprocessing["trees"])].tobytes()
        except (KeyError, TypeError, AttributeError) as error:
            raise unreadable(error) from None
        if not packed:
            raise UserError("no tree has grown yet: the nodes have not agreed on the bins")
        try:
            forest = Forest.unpack(packed)
        except ValueError as error:
            raise UserError(str(error)) from None
        if not forest.fits(schema):
            raise UserError("the trees do not fit the schema", value=len(forest.grid.edges))
        return cls(schema=schema, missing=missing, forest=forest)

    def outputs_for(self, table: Table) -> NDArray[np.float64]:
        return self.forest.outputs(raw_cells(table.columns, self.schema))


GROWTH = "growth"
"""The name of the array with the packed state of the growth."""
ALONE = "trees grow by sums over all nodes, and are not mixed by gossip"


class TreeLearner:
    """`growth` is this node's share of the trees; `parts` has the rows that are tested, by name."""

    size, personal = 1, 0
    exchange = b"packed histograms"
    is_summed = False
    """Set by the algorithm that carries the sums: without one, no tree would grow."""

    def __init__(
        self,
        task: TableTask,
        settings: TreeSettings,
        site: SiteRows,
        parts: Mapping[str, TestedRows],
        *,
        missing: Mapping[str, Iterable[str]],
        context: NodeContext,
    ) -> None:
        self.table, self.settings, self.site, self.context = task, settings, site, context
        self.samples = site.trained
        self.digest = task.schema.digest() if task.is_shared_file else b""
        self.metrics = {name: BUILT_IN[name] for name in task.metrics}
        self.measures = measured_by(self.metrics, task.metric, labels=task.schema.classes is not None)
        columns = [*task.schema.numeric, *task.schema.categories]
        self.preprocessing = reading_of(task.schema, missing) | {"trees": FOREST, "inputs": columns}
        # Nodes with other settings or columns cannot grow trees together.
        about = msgspec.json.encode((settings, task.schema.contents()))
        self.shape_digest = hashlib.blake2b(about, digest_size=16, person=b"p2pfl-trees").digest()
        self._parts = parts
        self._forest: Forest | None = None
        """A model that was read from a file, in place of the grown one."""
        self.growth = TreeGrowth.begin(task.schema, settings, site)

    @property
    def labels(self) -> bool:
        """True if the targets are classes."""
        return self.table.schema.classes is not None

    def entries_of_a_round(self, rows: int | None) -> list[int]:
        """Return the most entries of each sum of a round: a level's leaves, in all bins of all columns. `rows` are
        those of all nodes, if they are known: a leaf with too few is not split.
        """
        schema, settings = self.table.schema, self.settings
        forest = len(schema.numeric) * (settings.bins + 1) + sum(len(each) + 1 for each in schema.categories.values())
        most = 2**settings.max_depth if rows is None else max(1, rows // (2 * settings.least_rows))
        leaves = (min(2 ** max(0, level - 1), most) for level in range(settings.max_depth))
        digits = (MOST_ROWS << 11 if rows is None else rows).bit_length()
        numbers = forest * settings.outputs * (1 + 2 * BITS + SUMS * digits)
        return [min(1 + -(-numbers * each // 53), MOST_ENTRIES) for each in leaves]

    def initial(self) -> Vector:
        return np.zeros(1, np.float32)

    def train(self, start: RoundStart, round_index: int) -> LocalRound:  # noqa: ARG002 - the trees are beside the model
        """Make this node's part of the round's first sum. Raises LearningError: nothing carries sums."""
        if not self.is_summed:
            raise LearningError(ALONE)
        if not self.growth.done:
            self.growth.next_part()
        losses = self.growth.state.losses
        loss = losses[-1].trained if losses else None
        return LocalRound(
            vector=np.array([round_index + 1], np.float32),
            steps=1,
            learning_rate=self.settings.eta,
            samples=self.samples,
            loss=math.nan if loss is None else loss,
        )

    def evaluate(self, vector: Vector, part: str) -> Score | None:  # noqa: ARG002 - the trees are beside it
        forest, tested = self.forest, self._parts[part]
        if forest is None or not len(tested.targets):
            return None
        outputs, targets = tested.outputs(forest), self._targets(tested)
        hits = float((outputs.argmax(axis=1) == targets).mean()) if self.table.schema.classes else None
        own = {name: metric(outputs, targets) for name, metric in self.metrics.items()}
        ends = {ACCURACY.name: None if hits is None else wilson(hits, len(targets))}
        ends |= {name: metric.interval(outputs, targets) for name, metric in self.metrics.items() if metric.interval}
        loss = BUILT_IN["log_loss"](outputs, targets) if hits is not None else BUILT_IN["rmse"](outputs, targets) ** 2
        return Score(
            accuracy=hits if hits is not None else own.get(ACCURACY.name),
            loss=loss,
            samples=len(targets),
            metrics=own,
            intervals={name: span for name, span in ends.items() if span is not None and all(map(math.isfinite, span))},
        )

    def predictions(self, vector: Vector) -> tuple[Any, Any] | None:  # noqa: ARG002 - as above
        """Return outputs and targets of the test rows; None without trees or such rows."""
        forest, tested = self.forest, self._parts["test"]
        if forest is None or not len(tested.targets):
            return None
        return tested.outputs(forest), self._targets(tested)

    def _targets(self, rows: TestedRows) -> NDArray[Any]:
        return rows.targets.reshape(-1, 1) if self.table.schema.classes is None else rows.targets.astype(np.int64)

    @property
    def forest(self) -> Forest | None:
        """The model so far; None before the bins are agreed on."""
        if self._forest is not None:
            return self._forest
        return None if self.growth.state.grid is None else self.growth.forest()

    def local_state(self) -> dict[str, NDArray[np.generic]]:
        return {GROWTH: np.frombuffer(self.growth.pack(), np.uint8)}

    def load_local_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Raises UserError: it is the state of trees with other settings or columns."""
        if GROWTH not in state:
            text, allowed = "this state was learned by another kind of model", "another folder, to begin anew"
            raise UserError(text, key="task.model", value="trees", allowed=allowed)
        try:
            self.adopt(TreeGrowth.unpack(state[GROWTH].tobytes(), self.table.schema, self.settings, self.site))
        except ValueError as error:
            text, allowed = f"the state in this folder is of other trees: {error}", "another folder, to begin anew"
            raise UserError(text, key="task", allowed=allowed) from None

    def adopt(self, growth: TreeGrowth) -> None:
        """Go on with another state of the trees."""
        self.growth = growth
        for tested in self._parts.values():
            tested.forget()

    def state_dict(self, vector: Vector) -> dict[str, NDArray[np.generic]]:  # noqa: ARG002 - as above
        forest = self.forest
        return {FOREST: np.frombuffer(b"" if forest is None else forest.pack(), np.uint8)}

    def load_tensors(self, state: Mapping[str, NDArray[Any]]) -> Vector:
        """Take the trees of a file, and return the vector. Raises UserError: they are trees of other columns."""
        try:
            forest = Forest.unpack(state[FOREST].tobytes())
        except (KeyError, ValueError) as error:
            raise UserError(f"this file contains a different model: {error}", allowed="trees") from None
        if not forest.fits(self.table.schema):
            raise UserError("this file contains trees of other columns", allowed="those of the federation's task")
        self._forest = forest
        return np.array([len(forest.rounds)], np.float32)


class TestedRows:
    """Raw cells (columns, n) and targets (n,): classes, or numbers in their own unit; and the outputs of the trees so
    far, so that only new trees are added.
    """

    def __init__(self, cells: Cells, targets: NDArray[np.float64]) -> None:
        self.cells, self.targets = cells, targets
        self.forget()

    def forget(self) -> None:
        self._known: Forest | None = None
        self._codes: Any = None
        self._margins: NDArray[np.float64] = np.zeros((0, 0))

    def outputs(self, forest: Forest) -> NDArray[np.float64]:
        """Return the outputs (n, k), as of `Forest.outputs`."""
        known = self._known
        if known is None or len(known.rounds) > len(forest.rounds):
            self._codes = forest.grid.codes(self.cells)
            self._margins = forest.margins_without_trees(len(self.targets))
            first = 0
        else:
            first = len(known.rounds)
        forest.add_trees(self._margins, self._codes, first)
        self._known = forest
        return forest.as_outputs(self._margins)


@dataclass(frozen=True, slots=True)
class TreeTask:
    """A task with a learner of its own. `partition` divides a common table, for demos."""

    given: TableTask
    partition: str | None

    def settings(self, training: TrainingConfig) -> TreeSettings:
        """Return the settings of the trees. Raises UserError."""
        if training.rounds is None:
            text = "is missing: trees grow by rounds, one for each, and not for a time"
            raise UserError(text, key="training.rounds", allowed="a number of rounds")
        options, weights, schema = self.given.options, self.given.weights, self.given.schema
        about_trees = [key for key in OF_TREES if key != "colluders"]
        own: dict[str, Any] = {key: options[key] for key in about_trees if options.get(key) is not None}
        if weights is not None:
            own["class_weights"] = BALANCED
            if isinstance(weights, Mapping) and schema.classes is not None:
                own["class_weights"] = weights_given(schema, schema.classes, weights)
        if "patience" in own and not self.given.holdout:
            text = "needs rows held out at the nodes, over which the loss is summed"
            raise UserError(text, key="task.patience", value=own["patience"], allowed="with task.holdout")
        return tree_settings(schema, {"rounds": training.rounds, **own})

    def learner(self, context: NodeContext, training: TrainingConfig) -> Learner:
        """Make the learner of one node. Raises UserError: settings or rows are wrong."""
        settings = self.settings(training)
        own = split_rows(self.given, context, self.partition)
        cells, targets = self._rows(own.table)
        test = self._rows(own.tests) if own.tests is not None else (cells[:, own.held], targets[own.held])
        both = np.concatenate([own.train, own.held])
        site = SiteRows(cells[:, both], targets[both], np.arange(len(both)) >= len(own.train))
        parts = {"local": TestedRows(cells[:, own.train], targets[own.train]), "test": TestedRows(*test)}
        return TreeLearner(self.given, settings, site, parts, missing=self.given.layout({}).missing, context=context)

    def _rows(self, table: Table) -> tuple[Cells, NDArray[np.float64]]:
        schema = self.given.schema
        return raw_cells(table.columns, schema), table.columns[schema.target]
