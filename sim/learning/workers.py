"""Processes that train local rounds and test models beside the simulator's own.

A round depends on its start, its number, and what its node keeps to itself, so it has the same bits in whichever
process it is computed. Virtual time decides when its result is used, not its arrival.

The processes are forked, so they have the model, the data and the user's code without loading them again, and one
thread each, as the simulator itself. Vectors travel through memory that all processes share, everything else through
two pipes. As with the workers of torch's DataLoader, a data set must not read from a file that was opened before.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2pfl.errors import LearningError, P2PFLError, UserError
from p2pfl.learn.interface import Learner, LocalRound, RoundStart, Score, Vector
from p2pfl.learn.methods import Method
from sim.processes import how_it_died

MOST_SLOTS = 128
"""The messages of so many jobs fit into a pipe, so that neither side ever waits for the other to read."""
SLOT_BYTES = 1 << 30
"""How much memory all slots take at most, unless the processes need more to be busy."""
SLOTS_PER_WORKER = 2
STATE_BYTES = 1 << 16
"""How much what a node keeps to itself may take besides twice its size at the start, and the optimizer's vectors."""
OPTIMIZER_VECTORS = 8

State = dict[str, NDArray[np.generic]]


class WorkerDied(P2PFLError):  # noqa: N818 - it did
    """A process that trained has died, and with it the run."""


class Slot:
    """Memory shared by all processes, for one job at a time: `vectors` (1 + given, d) in float32, and room for what the
    node keeps to itself.
    """

    def __init__(self, vectors: int, size: int, state_bytes: int) -> None:
        self._memory = mmap.mmap(-1, max(1, 4 * vectors * size) + state_bytes)
        self.vectors = np.frombuffer(self._memory, np.float32, vectors * size).reshape(vectors, size)
        self._state = memoryview(self._memory)[4 * vectors * size :]

    def write_state(self, state: State) -> int:
        """Write the state; return its length in bytes, 0 for none. Raises UserError: there is no room for it."""
        if not state:
            return 0
        packed = pickle.dumps(state, protocol=5)
        if len(packed) > len(self._state):
            text = f"what a node keeps to itself has grown to {len(packed):,} bytes, too many to pass between processes"
            raise UserError(text, key="workers", allowed="1")
        self._state[: len(packed)] = packed
        return len(packed)

    def read_state(self, length: int) -> State:
        state: State = pickle.loads(self._state[:length]) if length else {}  # noqa: S301 - from our own processes
        return state


@dataclass(slots=True, eq=False)
class Flight:
    """One job on its way. `number` is that of the round, or `part` what the model is tested on."""

    node: int
    start: RoundStart
    state: State
    number: int = 0
    part: str = ""
    dropped: bool = False
    answer: tuple[str, Any] | None = None
    vector: Vector | None = None
    state_after: State = field(default_factory=dict)


class RoundPool:
    """`count` processes with the `learners` of all nodes. A node has at most one round in flight.

    Raises UserError if there can be no such processes here.
    """

    def __init__(self, learners: Sequence[Learner], method: Method, count: int) -> None:
        _refuse_elsewhere(count)
        _refuse_memory(learners, count)
        self._learners, self._given = learners, tuple(method.given)
        self._slots = _slots(learners[0], 1 + len(self._given), count, len(learners))
        self._free = list(range(len(self._slots)))
        self._queue: deque[Flight] = deque()
        self.cpu_s = [0.0, 0.0]
        """The CPU-seconds of all rounds, and of all tests."""
        self._jobs: dict[int, Flight] = {}
        """The jobs that the processes have, by slot."""
        self._rounds: dict[int, Flight] = {}
        """The rounds in flight, by node."""
        fork = multiprocessing.get_context("fork")
        theirs, self._tasks = fork.Pipe(duplex=False)
        self._answers, answers = fork.Pipe(duplex=False)
        locks = fork.Lock(), fork.Lock()
        desk = _Desk(learners, method, self._slots, theirs, answers, (self._tasks, self._answers), locks)
        self._processes: list[BaseProcess] = [fork.Process(target=desk.work, daemon=True) for _ in range(count)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the progress bar's thread is no danger to a fork
            for process in self._processes:
                process.start()
        theirs.close()
        answers.close()

    def __len__(self) -> int:
        return len(self._processes)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def begin(self, node: int, number: int, start: RoundStart) -> None:
        """Begin a round; its vectors must not be written to before `end` or `drop`."""
        flight = Flight(node, start, self._learners[node].local_state(), number)
        self._rounds[node] = flight
        self._queue.append(flight)
        self._send()

    def has(self, node: int) -> bool:
        """Return True if a round of this node is in flight."""
        return node in self._rounds

    def done(self, nodes: Iterable[int]) -> list[int]:
        """Return those of `nodes` whose rounds in flight have been computed."""
        self._receive(wait_for_one=False)
        return [node for node in nodes if node in self._rounds and self._rounds[node].answer is not None]

    def end(self, node: int) -> LocalRound:
        """Wait for the node's round and return it; its learner then has the state after the round.

        Raises LearningError, UserError: as the learner does; WorkerDied.
        """
        flight = self._rounds.pop(node)
        steps, rate, samples, loss = self._result(flight)
        if flight.state_after or flight.state:
            self._learners[node].load_local_state(flight.state_after)
        if flight.vector is None:
            raise AssertionError("a round without its model")
        return LocalRound(vector=flight.vector, steps=steps, learning_rate=rate, samples=samples, loss=loss)

    def drop(self, node: int) -> None:
        """Forget the node's round, if there is one."""
        flight = self._rounds.pop(node, None)
        if flight is not None:
            flight.dropped = True

    def drop_all(self) -> None:
        for node in list(self._rounds):
            self.drop(node)

    # -- tests ---------------------------------------------------------------------------------------------------------

    def evaluate(self, models: NDArray[Any], part: str, nodes: Sequence[int]) -> list[Score | None]:
        """Score each of `models` (b, d) on the `part` of its node, as its learner does."""
        flights = [
            Flight(node, RoundStart(model), self._learners[node].local_state(), part=part)
            for node, model in zip(nodes, models, strict=True)
        ]
        self._queue.extendleft(reversed(flights))  # somebody waits for them
        self._send()
        return [self._result(flight) for flight in flights]

    # -- processes -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill the processes, which hold nothing worth waiting for."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._tasks.close()
        self._answers.close()

    def _send(self) -> None:
        """Give the processes as much as there are slots for."""
        while self._queue and self._free:
            flight = self._queue.popleft()
            if flight.dropped:
                continue
            slot, start = self._free.pop(), flight.start
            memory = self._slots[slot]
            memory.vectors[0] = start.model
            for row, name in enumerate(self._given, start=1):
                if name in start.given:
                    memory.vectors[row] = start.given[name]
            self._jobs[slot] = flight
            by_method, state = start.method is not None, memory.write_state(flight.state)
            job = _Job(
                slot, flight.node, flight.number, flight.part, by_method, tuple(start.given), start.elapsed_s, state
            )
            with suppress(OSError):  # `_receive` sees that all processes are gone
                self._tasks.send(job)

    def _receive(self, *, wait_for_one: bool) -> None:
        """Take the answers that are there. Raises WorkerDied."""
        while True:
            ends = {process.sentinel: number for number, process in enumerate(self._processes, start=1)}
            ready = wait([self._answers, *ends], None if wait_for_one else 0.0)
            if self._answers not in ready:
                dead = [ends[end] for end in ready if isinstance(end, int)]
                if dead:
                    raise WorkerDied(self._how_it_died(dead[0]))
                return
            slot, cpu_s, kind, content, state = self._answers.recv()
            flight, memory = self._jobs.pop(slot), self._slots[slot]
            flight.answer = kind, content
            self.cpu_s[bool(flight.part)] += cpu_s
            if not flight.dropped and not flight.part:
                flight.vector, flight.state_after = memory.vectors[0].copy(), memory.read_state(state)
            self._free.append(slot)
            self._send()
            wait_for_one = False

    def _how_it_died(self, number: int) -> str:
        process = self._processes[number - 1]
        process.join()
        of = f"{number} of {len(self._processes)}"
        return f"process {of}, which trained local rounds, is gone: {how_it_died(process.exitcode)}"

    def _result(self, flight: Flight) -> Any:
        while flight.answer is None:
            self._receive(wait_for_one=True)
        kind, content = flight.answer
        match kind:
            case "done":
                return content
            case "failed":
                raise LearningError(content)
            case "refused":
                text, details = content
                raise UserError(text, **details)
        raise RuntimeError(f"a process that trained local rounds failed:\n{content}")


@dataclass(frozen=True, slots=True)
class _Job:
    """What a process is told about a job, whose vectors are in the slot."""

    slot: int
    node: int
    number: int
    part: str
    by_method: bool
    given: tuple[str, ...]
    elapsed_s: float
    state_bytes: int


@dataclass(slots=True, eq=False)
class _Desk:
    """One process's side."""

    learners: Sequence[Learner]
    method: Method
    slots: Sequence[Slot]
    tasks: Connection
    answers: Connection
    others: tuple[Connection, ...]
    """The simulator's ends of the pipes: while a process has them open, it would not see that the simulator is gone."""
    locks: tuple[Any, Any]
    """One process at a time takes a job, or answers."""

    def work(self) -> None:
        """Carry out jobs until the simulator is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the simulator hears Ctrl-C, and ends this process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(2, 1)  # a task's prints are not our data
        for one in self.others:
            one.close()
        gc.freeze()
        torch.set_num_threads(1)
        taking, answering = self.locks
        with suppress(EOFError, OSError):
            while True:
                with taking:
                    job: _Job = self.tasks.recv()
                began = time.process_time()
                answer = self._answer(job)
                with answering:
                    self.answers.send((job.slot, time.process_time() - began, *answer))

    def _answer(self, job: _Job) -> tuple[str, Any, int]:
        """Return the kind of the answer, its content, and the length of the state after the round."""
        try:
            return self._carry_out(job)
        except LearningError as error:
            return "failed", str(error), 0
        except UserError as error:
            details = {name: getattr(error, name) for name in ("file", "key", "value", "allowed")}
            return "refused", (error.message, details), 0
        except Exception:  # noqa: BLE001 - the simulator raises it
            return "broken", traceback.format_exc(), 0

    def _carry_out(self, job: _Job) -> tuple[str, Any, int]:
        memory, learner = self.slots[job.slot], self.learners[job.node]
        # Also if it is empty: an earlier round of the node, which was dropped, may have left something here.
        learner.load_local_state(memory.read_state(job.state_bytes))
        model, *given = memory.vectors.copy()
        if job.part:
            return "done", learner.evaluate(model, job.part), 0
        rows = {name: row for name, row in zip(self.method.given, given, strict=True) if name in job.given}
        local = learner.train(
            RoundStart(model, rows, self.method if job.by_method else None, job.elapsed_s), job.number
        )
        memory.vectors[0] = local.vector
        content = local.steps, local.learning_rate, local.samples, local.loss
        return "done", content, memory.write_state(learner.local_state())


def _slots(learner: Learner, vectors: int, workers: int, nodes: int) -> list[Slot]:
    """Make as many slots as the processes can use."""
    vector_bytes = 4 * max(1, learner.size)
    kept = sum(array.nbytes for array in learner.local_state().values())
    training = getattr(learner, "training", None)
    memory = OPTIMIZER_VECTORS * vector_bytes if training is not None and training.keep_optimizer else 0
    fitting = SLOT_BYTES // (vectors * vector_bytes + kept + memory)
    count = min(MOST_SLOTS, max(SLOTS_PER_WORKER * workers, min(fitting, nodes)))
    return [Slot(vectors, learner.size, 2 * kept + memory + STATE_BYTES) for _ in range(count)]


def _refuse_memory(learners: Sequence[Learner], count: int) -> None:
    """Refuse learners that must train all their rounds in one process. Raises UserError."""
    if any(getattr(learner, "stays_in_process", False) for learner in learners):
        text = "the task's clients may keep something in their process, which the others would not know"
        raise UserError(text, key="workers", value=count, allowed="1")


def _refuse_elsewhere(count: int) -> None:
    if sys.platform != "linux":
        text = f"on {sys.platform} a process cannot be copied safely while it uses torch"
        raise UserError(text, key="workers", value=count, allowed="1; more on Linux")
    if multiprocessing.current_process().daemon:
        raise UserError("this process may start no others", key="workers", value=count, allowed="1")
