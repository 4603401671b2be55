"""A Flower client as a node's learner: a `NumPyClient`, or a `ClientApp` with `@app.train` and `@app.evaluate`.

    task = flower.task(client_fn)                          # client_fn(context) returns a NumPyClient or its to_client()
    task = flower.task(app, initial=first_arrays)          # the message API, where a server would have the first arrays

The client's own code trains and tests. What its server would do is done by gossip: a local round is one `fit`, weighted
by the number of examples that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from p2pfl.adapt.client import Client
from p2pfl.adapt.client_learner import ClientLearner
from p2pfl.adapt.extras import needed
from p2pfl.adapt.flower_clients import AppClient, NumPyClient, ServersPart
from p2pfl.config.model import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn.task import NodeContext

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
        return ClientLearner(lambda: self.made(context), context, training, "a Flower client")

    def made(self, context: NodeContext) -> Client:
        """Make the client of one node."""
        samples = None if self.samples is None else int(self.samples(context))
        asked = ServersPart(initial=self.initial, config_of=self.config_of, samples=samples)
        kind: type[AppClient | NumPyClient] = AppClient if self.is_app else NumPyClient
        return kind.of(self.client, context, self.run_config, asked)

    def config_of(self, round_index: int) -> dict[str, Any]:
        """Return what `fit` gets in a round, counted from 0 here and from 1 there."""
        given = self.fit_config(round_index + 1) if callable(self.fit_config) else self.fit_config
        return {"server_round": round_index + 1, "server-round": round_index + 1, **given}
