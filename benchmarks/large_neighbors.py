"""The scripted neighbors of `large.py`: shipped cores and links, and no model behind them."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec.structs import replace

from p2pfl.compress import Fragments, Payload, make_compressor
from p2pfl.compress.fragments import HEAD
from p2pfl.config.cores import hops, settings_of, shares_of
from p2pfl.config.federation_id import federation_id, keys
from p2pfl.config.load import load_config
from p2pfl.config.model import FederationConfig
from p2pfl.core.core import Core
from p2pfl.core.effects import (
    ApplyReply,
    ApplyRequest,
    Bootstrap,
    CommitRound,
    Freeze,
    Operation,
    ResetEdge,
    StartRound,
)
from p2pfl.core.events import (
    Bootstrapped,
    Event,
    ReplyApplied,
    RequestApplied,
    RequestFrozen,
    RoundCommitted,
    RoundTrained,
)
from p2pfl.core.fragment_turns import turn_of
from p2pfl.core.lives import Life, Start
from p2pfl.core.messages import Reply, Request, request_digest
from p2pfl.core.records import EdgeRecord, next_chain
from p2pfl.crypto.handshake import FederationBinding
from p2pfl.crypto.identity import Identity
from p2pfl.engine.codecs import codecs_of, fragments_of, gammas_of
from p2pfl.learn.methods import method_of
from p2pfl.net.links import Links, Membership
from p2pfl.net.session_table import Callbacks
from p2pfl.node.assembly import learned_sections
from p2pfl.node.driver import Driver

SAMPLES = 4096


class Script:
    """What a neighbor answers: always the same bytes, made once for all of them."""

    def __init__(self, federation: FederationConfig, member: int, size: int, channels: int) -> None:
        self.size, self.channels, self.codec = size, channels, codecs_of(federation, member).default
        tile = np.random.default_rng(0).standard_normal(1 << 12).astype(np.float32) * np.float32(0.01)
        count = size
        if isinstance(self.codec, Fragments):
            count = self.codec.longest(size, channels)
        values = np.resize(tile, count)
        inner = self.codec.inner if isinstance(self.codec, Fragments) else self.codec
        self.body: Payload = inner.encode(values, chance=1)

    def body_of(self, member: int, peer: int, seq: int) -> Payload:
        """Return the body of a message in transaction `seq`."""
        codec = self.codec
        if not isinstance(codec, Fragments):
            return self.body
        number = turn_of(codec.count, member, peer, seq)
        values = sum(part.stop - part.start for part in codec.slices(number, self.size, self.channels))
        return HEAD.pack(codec.count, number) + bytes(self.body[: codec.inner.size_bytes(values)])


class ScriptedEngine:
    """Stands for a node's engine and its thread: it answers the core's operations at once, without vectors."""

    def __init__(self, member: int, peers: Sequence[int], script: Script, terms: tuple[float, ...]) -> None:
        self.member, self.script, self.terms = member, script, terms
        self.records = {peer: EdgeRecord() for peer in peers}
        self.jobs = SimpleNamespace(put=self._put)
        self.in_step = False
        self.rounds = 0
        self.driver: Driver
        self.began: dict[int, float] = {}
        self.took_s: list[float] = []

    def is_alive(self) -> bool:
        return False

    def _put(self, job: Any) -> None:
        event = self.answer(job.operation)
        if event is not None:
            self.driver.loop.call_soon(self.driver.take, event)

    def answer(self, op: Operation) -> Event | None:
        match op:
            case Freeze():
                return self._freeze(op)
            case ApplyRequest(peer=peer, request=request):
                return self._reply(op, self.records[peer], request)
            case ApplyReply(peer=peer, reply=reply):
                record = self.records[peer]
                if record.pending is None:
                    raise ValueError("a reply to no request")
                self.took_s.append(time.perf_counter() - self.began[peer])
                chain = next_chain(record.chain, record.pending, reply)
                record.settle_reply(reply, chain)
                return ReplyApplied(peer=peer, reply=reply, chain=chain)
            case ResetEdge(peer=peer, incarnation=incarnation):
                self.records[peer].reset(incarnation)
            case CommitRound(version=version):
                self.rounds += op.trained
                return RoundCommitted(version=version, rounds=self.rounds, samples=SAMPLES, failed=False)
            case Bootstrap():
                return Bootstrapped()
        return None

    def _freeze(self, op: Freeze) -> Event:
        request = Request(
            incarnation=op.incarnation, seq=op.seq, version=op.version, echo=op.echo, weight=op.weight,
            staleness=op.staleness, pace_s=op.pace_s, terms=self.terms, audit=b"",
            body=self.script.body_of(self.member, op.peer, op.seq),
        )  # fmt: skip
        request = replace(request, digest=request_digest(request))
        self.records[op.peer].freeze(request)
        self.began[op.peer] = time.perf_counter()
        return RequestFrozen(peer=op.peer, request=request)

    def _reply(self, op: ApplyRequest, record: EdgeRecord, request: Request) -> Event:
        reply = Reply(
            incarnation=request.incarnation, seq=request.seq, request_digest=request.digest, version=op.version,
            factor=op.factor, weight=op.weight, pace_s=op.pace_s, terms=request.terms,
            body=self.script.body_of(self.member, op.peer, request.seq),
        )  # fmt: skip
        chain = next_chain(record.chain, request, reply)
        record.settle_request(request, reply, chain)
        return RequestApplied(peer=op.peer, request=request, reply=reply, chain=chain)


class ScriptedRounds:
    """Stands for local rounds: each takes the same time and trains nothing."""

    def __init__(self, round_s: float) -> None:
        self.round_s = round_s
        self.node: Driver

    def report_to(self, node: Driver) -> None:
        self.node = node

    def start(self, effect: StartRound) -> None:
        del effect
        self.node.loop.call_later(self.round_s, lambda: self.node.take(RoundTrained(steps=1, samples=SAMPLES)))

    def restore_learner(self) -> None: ...
    def look_between_rounds(self, version: int, closing_rounds: int) -> None: ...
    def close(self) -> None: ...


def run_neighbors(folder: str, center: int, shape: bytes, size: int, round_s: float) -> None:
    """Run all neighbors of the node until terminated, then print how long their exchanges took."""
    federation = load_config(Path(folder))
    method = method_of(federation)
    exchanged = size * len(method.channels)
    binding = FederationBinding(
        federation_id=federation_id(federation), sections=(*keys(federation), *learned_sections(shape, b""))
    )
    engines: list[ScriptedEngine] = []

    waiting = set(federation.neighbors(center))

    async def one(member: int, script: Script) -> None:
        peers = federation.neighbors(member)
        core = Core(
            index=member,
            neighbors=peers,
            settings=settings_of(
                federation,
                hops=hops(federation, member),
                gammas=gammas_of(federation, member, exchanged),
                shares=shares_of(federation, member),
                fragments=fragments_of(codecs_of(federation, member), peers),
            ),
            samples=SAMPLES,
            durable=False,
            start=Start(Life(0, member + 1), member + 1),
        )
        engine = ScriptedEngine(member, peers, script, tuple(0.001 for _ in method.no_terms))
        engines.append(engine)
        stand: Callable[..., Any] = Driver
        driver = engine.driver = stand(core, engine, ScriptedRounds(round_s), name_of=str)
        members = federation.members
        links = Links(
            Membership(
                identity=Identity.load(Path(folder) / f"node{member}" / "node.key"),
                own_index=member,
                members={each.key: each.index for each in members},
                neighbors=frozenset(peers),
                dial={peer: members[peer].address for peer in peers},
                binding=binding,
            ),
            Callbacks(
                on_open=driver.session_opened, on_message=driver.message_received, on_close=driver.session_closed
            ),
            listen=str(members[member].address),
            max_body_bytes=make_compressor(federation.gossip.compressor).size_bytes(exchanged),
            rng=Random(member),
        )
        async with links:
            waiting.discard(member)
            if not waiting:
                print("{}", flush=True)
            driver.start(links)
            await driver.finished.wait()
        raise RuntimeError(f"neighbor {member} has ended: {driver.failure}")

    async def all_of_them() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(15, over.set)
        script = Script(federation, center, exchanged, len(method.channels))
        tasks = [asyncio.create_task(one(peer, script)) for peer in federation.neighbors(center)]
        ended = asyncio.create_task(over.wait())
        done, _ = await asyncio.wait([ended, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {ended}:
            task.result()
        later = [took for engine in engines for took in engine.took_s[1:]]
        print(json.dumps({"wall_ms": 1e3 * statistics.median(later)} if later else {}), flush=True)
        os._exit(0)

    asyncio.run(all_of_them())
