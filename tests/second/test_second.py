"""The second implementation computes the vectors of the page, and is the neighbor of a real node."""

import asyncio
import base64
import json
import re
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from zlib import crc32

import aiohttp
import numpy as np
import pytest
import safetensors.numpy
import xxhash
from nacl.bindings import crypto_sign_seed_keypair
from peer import BROKEN, NOTICE, Edge, Frame, Handshake, Line, Members, Peer, Type, dial, listen

from p2pfl import Federation
from p2pfl.config import load_config, load_node
from p2pfl.node import binding, read_setup

PAGE = Path(__file__).parents[2].joinpath("docs/reference/vectors.md").read_text(encoding="utf-8")
V = {name: bytes.fromhex(value) for name, value in re.findall(r"^(\w+): ((?:[0-9a-f]+\s+)+)", PAGE, re.MULTILINE)}
SAMPLES, D = [20, 40, 20, 20, 10], 6000
BITS = (0, 255, 256, 383, 512, -1)


def flipped(message, bit):
    return (int.from_bytes(message, "little") ^ 1 << bit % (8 * len(message))).to_bytes(len(message), "little")


def test_handshake_and_stream_of_the_page():
    members = Members(V["federation"], (("federation.name", V["setting_1"]), ("model", V["setting_2"])), ())
    i, r = Handshake(members, V["seed_i"], V["public_r"], V["e_i"]), Handshake(members, V["seed_r"], secret=V["e_r"])
    m2 = r.second(i.m1)
    m3 = i.third(m2)
    r.last(m3)
    assert (i.m1, m2, m3, i.agrees, r.agrees) == (V["m1"], V["m2"], V["m3"], True, True)
    assert [i.send_key, i.receive_key] == [r.receive_key, r.send_key] == [V["stream_i2r"], V["stream_r2i"]]
    for bit in BITS:
        with pytest.raises(BROKEN):
            i.third(flipped(m2, bit))
    line = Line(None, r)
    assert [line.open(V[f"sealed_{n}"]) for n in (1, 2, 3)] == [V["greeting"], V["text"], b""]
    with pytest.raises(ValueError, match="the end"):
        line.open(V["sealed_4"])


def test_frames_and_transactions_of_the_page():
    i, j = Edge(np.float32([1, 2, 3]), 30, initiates=True), Edge(np.float32([-1, 0.5, 4]), 90, initiates=False)
    first = V["request_1"]
    part = xxhash.xxh3_128_digest(first[3:4] + first[10:18] + first[18:-12] + first[-12:-4], seed=2)
    frames = {
        "offer": Frame(Type.OFFER, [9, 10, ["vitals/1"]], version=9),
        "hello": Frame(Type.HELLO, [*i.hello(), 0, None, None, False, False, 0, 7, 8, 0, 40, b"", b""]),
        "ready": Frame(Type.READY, [3, None, None, 3, 40, crc32(b"\x07|\x01"), b"\x07", b"\x01"]),
        "part_held": Frame(Type.PART_HELD, [8, part], version=9),
    }
    assert {name: frame.head() for name, frame in frames.items()} == {name: V[name] for name in frames}
    i.pace_s, j.pace_s = 0.5, 0.25
    for seq in (1, 2):
        i.audited = False
        i.freeze(seq)
        exchanged = [i.request, j.hear_request(i.request, 1)]
        i.hear_reply(exchanged[1])
        got = [*(frame.head() + frame.body for frame in exchanged), i.digest, i.chain, bytes(i.x), bytes(j.x)]
        assert got == [V[f"{name}_{seq}"] for name in ("request", "reply", "digest", "chain", "x_i", "x_j")]
        i.x = np.float32([1.5, 2, 2.5])


class Careless(Peer):
    """Breaks its line once: before it hears or sends a Reply, or, having forgotten its replicas, at rest."""

    forgets = broken = False

    def hear(self, frame):
        breaks = not self.broken and self.edge.seq == 3 and frame.kind in {Type.REQUEST, Type.REPLY}
        answer = super().hear(frame) if not breaks or (frame.kind == Type.REPLY) == self.forgets else None
        if breaks:
            self.broken, self.edge.has_replicas = True, not self.forgets
            raise ValueError("broken")
        return answer


class Ward:
    """A star around node2, which nodes 0 and 3 dial, and which dials nodes 1 and 4. Rounds learn next to nothing."""

    def __init__(self, folder):
        (folder / "star.edges").write_text("0 2\n1 2\n2 3\n2 4\n")
        task = {"task": "quadratic", "options": {"size": D, "samples": SAMPLES}, "learning_rate": 1e-30, "rounds": 8}
        kept = {"compressor": "none", "method": "plain", "local_steps": 1, "when_through": "mix"}
        self.folder = Federation(nodes=5, topology=str(folder / "star.edges"), **task, **kept).save(folder / "ward")
        file = self.folder / "federation.toml"
        self.ports = [int(port) for port in re.findall(r"127.0.0.1:(\d+)", file.read_text())]
        self.url = f"http://127.0.0.1:{self.ports[2]}/p2pfl"
        file.write_text(re.sub(r'(name = "node[03]"\nkey = .*\n)address = .*\n', r"\1", file.read_text()))
        keys = [(self.folder / f"node{i}/node.key").read_text().strip().partition(":")[2] for i in range(5)]
        self.seeds = [base64.urlsafe_b64decode(key + "=") for key in keys]
        config = load_config(self.folder)
        bound = binding(read_setup(config, load_node(self.folder / "node2", config)))
        publics = tuple(crypto_sign_seed_keypair(seed)[0] for seed in self.seeds)
        self.members = Members(bound.federation_id, bound.sections, publics)

    @asynccontextmanager
    async def node2(self):
        run = (sys.executable, "-m", "p2pfl", "run", self.folder, "--node", "node2", "-v")
        process = await asyncio.create_subprocess_exec(*run, stderr=asyncio.subprocess.PIPE)
        try:
            while b"listening" not in await process.stderr.readline():
                assert process.returncode is None
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def test_a_node_averages_with_it_in_each_role(tmp_path, p2pfl):
    ward = Ward(tmp_path)
    start = {i: np.random.default_rng(i).normal(size=D).astype("float32") for i in (0, 1, 3, 4)}
    peers = {i: Careless(ward.members, ward.seeds[i], 2, x, SAMPLES[i], reach=2, rounds=8) for i, x in start.items()}
    peers[1].forgets = peers[3].forgets = True
    async with asyncio.timeout(60), ward.node2() as node:
        dials = [dial(peers[i], ward.url) for i in (0, 3)]
        await asyncio.gather(*dials, *(listen(peers[i], ward.ports[i]) for i in (1, 4)))
        assert await node.wait() == 0
    assert p2pfl("export", ward.folder / "node2", "-o", "w.safetensors").code == 0
    end = {i: peer.edge.x for i, peer in peers.items()} | {2: safetensors.numpy.load_file("w.safetensors")["w"]}
    before, after = (sum(SAMPLES[i] * np.float64(x) for i, x in xs.items()) for xs in (start, end))
    assert np.abs(after - before).max() < 1e-3
    far, near = (max(np.abs(x - before / sum(SAMPLES)).max() for x in xs.values()) for xs in (start, end))
    assert near < far / 4
    result = json.loads((ward.folder / "node2/state/result.json").read_text())
    assert (result["alarms"], [each["faults"] for each in result["neighbors"]]) == ({}, [{}] * 4)
    assert [(peer.broken, peer.edge.incarnation) for peer in peers.values()] == [(True, each) for each in (0, 1, 1, 0)]
    assert min(peer.edge.exchanges for peer in peers.values()) >= 8 + 10


async def test_misuse_gets_the_answers_of_the_page(tmp_path):
    ward = Ward(tmp_path)
    members, seed, key = ward.members, ward.seeds[0], ward.members.keys[2]

    async def came(shake, *chunks, m1=None, third=None):
        """How many messages come until the node ends the line."""
        async with aiohttp.ClientSession() as http, http.ws_connect(ward.url) as ws:
            await ws.send_bytes(m1 or shake.m1)
            count = 0
            while (message := await ws.receive(10)).type is aiohttp.WSMsgType.BINARY:
                count += 1
                if count == 1:
                    await ws.send_bytes((third or shake.third)(message.data))
                    for chunk in map(Line(ws, shake).seal, chunks):
                        await ws.send_bytes(chunk)
            return count

    async with asyncio.timeout(60), ward.node2() as node:
        shake = Handshake(members, seed, key)
        assert [await came(shake, m1=flipped(shake.m1, bit)) for bit in BITS] == [0] * 6
        others = [members._replace(id=bytes(32)), members._replace(settings=members.settings[1:])]
        strangers = [*(Handshake(other, seed, key) for other in others), Handshake(members, bytes(32), key)]
        assert [await came(stranger) for stranger in strangers] == [1] * 3
        opening = NOTICE.pack(1, bytes(16), 0), NOTICE.pack(2, bytes(16), 1)
        newer = Frame(Type.OFFER, [11, 12, []], version=9).head()
        assert await came(shake, *opening, newer) == 4  # m2, GREETING, Offer, FINAL
        assert await came(shake, *opening, bytes(2**18 + 1)) < 4
        assert [await came(shake, third=lambda m2, bit=bit: flipped(shake.third(m2), bit)) for bit in BITS] == [1] * 6
        old = shake.introduce("initiator", "th3")
        assert await came(shake, third=lambda _: old) == 1  # a replayed m1 gets another m2
        node.kill()
        log = (await node.stderr.read()).decode()
    assert "node0): its federation file differs from ours in: federation.name" in log
    assert "speaks protocol versions 11 to 12" in log
    assert "a sealed chunk of 262162 bytes" in log
