"""A Flower client as a node's learner: a `NumPyClient`, or a `ClientApp` with `@app.train` and `@app.evaluate`.

    task = flower.task(client_fn)                          # client_fn(context) returns a NumPyClient or its to_client()
    task = flower.task(app, initial=first_arrays)          # the message API, where a server would have the first arrays

The client's own code trains and tests. What its server would do is done by gossip: a local round is one `fit`,
weighted by the number of examples that it returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from p2pfl.adapt.client import (
    EXAMPLES,
    Arrays,
    ClientFit,
    ClientLearner,
    ClientScore,
    examples_of,
    needed,
    numbers_of,
)
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import LearningError, UserError
from p2pfl.learn.task import NodeContext

ARRAYS, CONFIG = "arrays", "config"
"""The keys of a message's records, as Flower's strategies have them."""
A_DAY_S = 86_400.0
TEST_LOSSES = ("eval_loss", "eval-loss", "loss")


class NumPyClient:
    """A client with `get_parameters`, `fit` and `evaluate`."""

    def __init__(self, asked: FlowerTask, context: NodeContext) -> None:
        """Call `client_fn`. Raises UserError: it returns no NumPyClient."""
        from flwr.client import NumPyClient as Theirs  # noqa: PLC0415 - an extra

        made = asked.client(_context(context, asked.run_config))
        self.client, self.asked = getattr(made, "numpy_client", made), asked  # what to_client() wraps
        self.name, self._samples = type(self.client).__name__, asked.samples_at(context)
        if not isinstance(self.client, Theirs):
            allowed = "a NumPyClient, or its to_client()"
            raise UserError("client_fn returned something else", key="client_fn", value=type(made), allowed=allowed)

    def count(self) -> int | None:
        return self._samples

    def first(self) -> Arrays:
        initial = self.asked.initial
        given = self.client.get_parameters({}) if initial is None else _arrays_of(initial())
        if not given:
            text = "the client has no get_parameters, and a server's first arrays are not known here"
            raise UserError(text, file=self.name, key="initial", allowed="flower.task(..., initial=function)")
        return [np.asarray(array) for array in given]

    def names(self, count: int) -> list[str]:
        return [f"array {index}" for index in range(count)]

    def fit(self, arrays: Arrays, round_index: int) -> ClientFit:
        returned = self.client.fit(arrays, self.asked.config_of(round_index))
        if not (isinstance(returned, tuple) and len(returned) == 3 and isinstance(returned[0], list | tuple)):
            raise LearningError(f"{self.name}.fit returned no triple (arrays, number of examples, metrics)")
        trained = [np.asarray(array) for array in returned[0]]
        return ClientFit(trained, examples_of(returned[1], f"{self.name}.fit"), numbers_of(returned[2]))

    def evaluate(self, arrays: Arrays) -> ClientScore | None:
        from flwr.client import NumPyClient as Theirs  # noqa: PLC0415 - an extra

        if type(self.client).evaluate is Theirs.evaluate:
            return None
        returned = self.client.evaluate(arrays, {})
        if not (isinstance(returned, tuple) and len(returned) == 3 and isinstance(returned[0], Real)):
            raise LearningError(f"{self.name}.evaluate returned no triple (loss, number of examples, metrics)")
        loss, count, figures = returned
        return ClientScore(float(loss), examples_of(count, f"{self.name}.evaluate"), numbers_of(figures))


class AppClient:
    """A `ClientApp` of the message API. Its context lasts as long as the process; its state is not in snapshots."""

    name = "ClientApp"

    def __init__(self, asked: FlowerTask, context: NodeContext) -> None:
        self.asked, self.context, self._samples = asked, _context(context, asked.run_config), asked.samples_at(context)
        self.keys: list[str] = []

    def count(self) -> int | None:
        return self._samples

    def first(self) -> Arrays:
        given: Any = self.asked.initial and self.asked.initial()
        arrays = _arrays_of(given)
        self.keys = list(given.keys()) if hasattr(given, "keys") else [str(index) for index in range(len(arrays))]
        return arrays

    def names(self, count: int) -> list[str]:
        del count
        return self.keys

    def fit(self, arrays: Arrays, round_index: int) -> ClientFit:
        content = self._answer("train", arrays, self.asked.config_of(round_index))
        records = list(content.array_records.values())
        if len(records) != 1:
            raise LearningError(f"{self.name}: train replied with {len(records)} ArrayRecords; allowed: one")
        if set(records[0]) != set(self.keys):
            text = f"{self.name}: train replied with {len(records[0])} arrays, and got {len(self.keys)}: names differ"
            raise LearningError(text)
        examples = self._examples_in(content, "train")
        return ClientFit([records[0][key].numpy() for key in self.keys], examples, self._figures(content))

    def evaluate(self, arrays: Arrays) -> ClientScore | None:
        content = self._answer("evaluate", arrays, {})
        figures = self._figures(content)
        loss = next((figures[name] for name in TEST_LOSSES if name in figures), float("nan"))
        return ClientScore(loss, self._examples_in(content, "evaluate"), figures)

    def _figures(self, content: Any) -> dict[str, float]:
        return {name: value for record in content.metric_records.values() for name, value in numbers_of(record).items()}

    def _examples_in(self, content: Any, kind: str) -> int:
        counts = (record[EXAMPLES] for record in content.metric_records.values() if EXAMPLES in record)
        return examples_of(next(counts, None), f"{self.name}: {kind}")

    def _answer(self, kind: str, arrays: Arrays, config: dict[str, Any]) -> Any:
        """Send a message to the app, and return the content of its reply."""
        from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict  # noqa: PLC0415 - an extra

        named = {key: Array(array) for key, array in zip(self.keys, arrays, strict=True)}
        content = RecordDict({ARRAYS: ArrayRecord(named), CONFIG: ConfigRecord(config)})
        about = Metadata(
            run_id=self.context.run_id,
            message_id="",
            src_node_id=self.context.node_id,  # no server: the node asks itself
            dst_node_id=self.context.node_id,
            reply_to_message_id="",
            group_id=str(config.get("server-round", "")),
            created_at=time.time(),
            ttl=A_DAY_S,
            message_type=kind,
        )
        reply = self.asked.client(Message(content=content, metadata=about), self.context)
        if not isinstance(reply, Message) or not reply.has_content():
            raise LearningError(f"{self.name}: {kind} returned no message with content")
        return reply.content


def _context(node: NodeContext, run_config: Mapping[str, Any]) -> Any:
    """Return the context of a node, as in a simulation of Flower's; the keys of `[data]` stand beside."""
    from flwr.app import Context, RecordDict  # noqa: PLC0415 - an extra

    own = {
        key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in node.local.items()
    }
    numbers = {"partition-id": node.node, "num-partitions": node.nodes}
    return Context(
        run_id=node.seed,
        node_id=node.node,
        node_config=own | numbers,
        state=RecordDict(),
        run_config=dict(run_config),
    )


def _arrays_of(given: Any) -> Arrays:
    """Return a list of arrays, of one or of an ArrayRecord."""
    return list(given.to_numpy_ndarrays()) if hasattr(given, "to_numpy_ndarrays") else [np.asarray(a) for a in given]


Config = Mapping[str, Any]


def task(
    client: Any,
    *,
    initial: Callable[[], Any] | None = None,
    fit_config: Callable[[int], Config] | Config | None = None,
    run_config: Config | None = None,
    samples: Callable[[NodeContext], int] | None = None,
    name: str = "",
) -> FlowerTask:
    """Make a task of a `client_fn(context)`, or of a `ClientApp`.

    `initial` returns the arrays that all nodes start from, a list of numpy arrays or an `ArrayRecord`; by default they
    are those of the client's `get_parameters`. `fit_config` has the keys of the config that `fit` gets, or is a
    function of the round, from 1; `server_round` is always among them. `run_config` is the context's; its
    `node_config` has `partition-id`, `num-partitions` and the keys of the node's `[data]`. `samples` returns a node's
    number of training examples; without it, the node fits once at its start to learn it, and that is its first round.
    Raises UserError: Flower is not installed, or `client` is neither.
    """
    needed("flwr.clientapp", "flower", "Flower")
    from flwr.clientapp import ClientApp  # noqa: PLC0415 - an extra

    is_app = isinstance(client, ClientApp)
    if not is_app and (not callable(client) or isinstance(client, type)):
        allowed = "a function client_fn(context), or a ClientApp"
        raise UserError("this is no client", file="flower.task", key="client", value=client, allowed=allowed)
    if is_app and initial is None:
        text, allowed = "a ClientApp has no first arrays", "a function that returns an ArrayRecord"
        raise UserError(text, file="flower.task", key="initial", allowed=allowed)
    if is_app and getattr(client, "_call", None) is not None:
        text, allowed = "this ClientApp only wraps a client_fn", "that client_fn"
        raise UserError(text, file="flower.task", key="client", value=client, allowed=allowed)
    return FlowerTask(
        client=client,
        is_app=is_app,
        initial=initial,
        fit_config=fit_config or {},
        run_config=run_config or {},
        samples=samples,
        name=name,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowerTask:
    """A task with a learner of its own; `task` makes it."""

    client: Any
    is_app: bool = False
    initial: Callable[[], Any] | None = None
    fit_config: Callable[[int], Config] | Config = field(default_factory=dict)
    run_config: Config = field(default_factory=dict)
    samples: Callable[[NodeContext], int] | None = None
    name: str = ""

    def learner(self, context: NodeContext, training: TrainingConfig) -> ClientLearner:
        """Make the learner of one node. Raises UserError: the client fails, or does not keep to Flower's interface."""
        kind: type[AppClient | NumPyClient] = AppClient if self.is_app else NumPyClient
        return ClientLearner(lambda: kind(self, context), context, training, "a Flower client")

    def samples_at(self, node: NodeContext) -> int | None:
        """Return a node's number of training examples, if it is told beforehand."""
        return None if self.samples is None else int(self.samples(node))

    def config_of(self, round_index: int) -> dict[str, Any]:
        """Return what `fit` gets in a round, counted from 0 here and from 1 there."""
        given = self.fit_config(round_index + 1) if callable(self.fit_config) else self.fit_config
        return {"server_round": round_index + 1, "server-round": round_index + 1, **given}
