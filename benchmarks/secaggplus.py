"""Messages and bytes of Flower's SecAgg+, beside those of `benchmarks/sums.py`: its own workflow and client code.

Flower is no dependency of p2pfl: run this with a Python that has `flwr` (1.42.0 was measured) and nothing of p2pfl.
Server and clients are in one process; each message is serialized, counted and read again. Who dies does so after it
has dealt its shares and before it sends its masked vector.
Usage: python benchmarks/secaggplus.py [--clients 16] [--entries 10,1000,100000] [--dying 0,1] [--shares 13]
"""

from __future__ import annotations

import argparse
import logging
from types import SimpleNamespace
from typing import Any

import flwr
import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.supercore.task_identity import TaskIdentity

LAST_STAGE = 1
"""The stage that who dies still takes part in: it deals its shares. The next one collects the masked vectors."""
ROWS = 1000
"""Each client's weight, and the most there may be."""


class CountedGrid:
    """Carries the server's messages to clients in this process, and counts them and the answers."""

    def __init__(self, vectors: dict[int, Any], dying: int) -> None:
        self._vectors, self._doomed = vectors, set(list(vectors)[:dying])
        self._contexts = {n: context_of(n) for n in vectors}
        self._stage = 0
        self.messages = self.up = self.down = 0

    def send_and_receive(self, messages: list[Message], **_: float | None) -> list[Message]:
        answers = [self._answer(message) for message in messages]
        self._stage += 1
        return answers

    def _answer(self, message: Message) -> Message:
        client = message.metadata.dst_node_id
        proto = message_to_proto(message)
        self.messages, self.down = self.messages + 1, self.down + proto.ByteSize()
        if client in self._doomed and self._stage > LAST_STAGE:
            return Message(Error(code=1, reason="gone"), reply_to=message)
        answer = secaggplus_mod(
            message_from_proto(proto), self._contexts[client], lambda *each: self._fit(client, *each)
        )
        self.messages, self.up = self.messages + 1, self.up + message_to_proto(answer).ByteSize()
        return answer

    def _fit(self, client: int, message: Message, _: Context) -> Message:
        vector = ndarrays_to_parameters([self._vectors[client]])
        return Message(
            compat.fitres_to_recorddict(FitRes(Status(Code.OK, ""), vector, ROWS, {}), keep_input=False),
            reply_to=message,
        )


class Strategy:
    """All clients take part; keeps the mean that the server gets."""

    def __init__(self, clients: int) -> None:
        self._clients, self.mean = clients, None

    def configure_fit(self, _: int, parameters: Any, __: Any) -> list[Any]:
        return [(SimpleNamespace(node_id=n), FitIns(parameters, {})) for n in range(1, self._clients + 1)]

    def aggregate_fit(self, _: int, results: list[Any], __: list[Any]) -> tuple[None, dict[str, Any]]:
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


def context_of(node: int) -> Context:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def one_sum(clients: int, entries: int, dying: int, shares: int) -> None:
    """Print a row. Raises RuntimeError: the mean is not that of who is left."""
    vectors = {n: np.random.default_rng(n).uniform(-1, 1, entries).astype(np.float32) for n in range(1, clients + 1)}
    grid, strategy = CountedGrid(vectors, dying), Strategy(clients)
    manager = SimpleNamespace(num_available=lambda: clients)
    legacy = LegacyContext(context_of(0), strategy=strategy, client_manager=manager)
    model = compat.parameters_to_arrayrecord(ndarrays_to_parameters([np.zeros(entries, np.float32)]), keep_input=True)
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({"current_round": 1})
    legacy.state.array_records[MAIN_PARAMS_RECORD] = model
    SecAggPlusWorkflow(shares, shares // 2 + 1)(grid, legacy)
    left = [vector for n, vector in vectors.items() if n > dying]
    if strategy.mean is None or not np.allclose(strategy.mean, np.mean(left, axis=0), atol=1e-4):
        raise RuntimeError("the mean is not that of who is left")
    print(
        f"| {clients} | {entries} | {dying} | {grid.messages / clients:.1f} | {grid.up / clients / 1000:.0f} kB | "
        f"{grid.down / clients / 1000:.0f} kB | {(grid.up + grid.down) / clients / 1000:.0f} kB |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--entries", default="10,1000,100000")
    parser.add_argument("--dying", default="0,1")
    parser.add_argument("--shares", type=int, default=13)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = 0
    print(f"flwr {flwr.__version__}, for each client:\n\n| clients | entries | dying | messages | up | down | both |")
    print("|---|---|---|---|---|---|---|")
    for entries in map(int, options.entries.split(",")):
        for dying in map(int, options.dying.split(",")):
            one_sum(options.clients, entries, dying, options.shares)


if __name__ == "__main__":
    main()
