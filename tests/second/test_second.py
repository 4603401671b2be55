"""The second implementation computes the vectors of the page, and is the neighbor of a real node."""

import asyncio
import base64
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import safetensors.numpy
import xxhash
from nacl.bindings import crypto_sign_seed_keypair
from peer import Edge, Frame, Handshake, Line, Members, Peer, Type, dial, listen

from p2pfl import Federation
from p2pfl.config import load_config, load_node
from p2pfl.node import binding, read_setup

PAGE = Path(__file__).parents[2].joinpath("docs/reference/vectors.md").read_text(encoding="utf-8")
V = {name: bytes.fromhex(value) for name, value in re.findall(r"^(\w+): ((?:[0-9a-f]+\s+)+)", PAGE, re.MULTILINE)}
SAMPLES, D = [20, 40, 20, 20, 10], 6000


def test_handshake_and_stream_of_the_page():
    members = Members(V["federation"], (("federation.name", V["setting_1"]), ("model", V["setting_2"])), ())
    i, r = Handshake(members, V["seed_i"], V["public_r"], V["e_i"]), Handshake(members, V["seed_r"], secret=V["e_r"])
    m2 = r.second(i.m1)
    m3 = i.third(m2)
    r.last(m3)
    assert (i.m1, m2, m3, i.agrees, r.agrees) == (V["m1"], V["m2"], V["m3"], True, True)
    assert [i.send_key, i.receive_key] == [r.receive_key, r.send_key] == [V["stream_i2r"], V["stream_r2i"]]
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


def star(folder):
    """A star around node2, which nodes 0 and 3 dial, and which dials nodes 1 and 4. Rounds learn next to nothing."""
    (folder / "star.edges").write_text("0 2\n1 2\n2 3\n2 4\n")
    task = {"task": "quadratic", "options": {"size": D, "samples": SAMPLES}, "learning_rate": 1e-30, "rounds": 8}
    kept = {"compressor": "none", "method": "plain", "local_steps": 1, "when_through": "mix"}
    ward = Federation(nodes=5, topology=str(folder / "star.edges"), **task, **kept).save(folder / "ward")
    text = (ward / "federation.toml").read_text()
    undialed = re.sub(r'(name = "node[03]"\nkey = .*\n)address = .*\n', r"\1", text)
    (ward / "federation.toml").write_text(undialed)
    keys = [(ward / f"node{i}/node.key").read_text().strip().partition(":")[2] for i in range(5)]
    seeds = [base64.urlsafe_b64decode(key + "=") for key in keys]
    config = load_config(ward)
    bound = binding(read_setup(config, load_node(ward / "node2", config)))
    publics = tuple(crypto_sign_seed_keypair(seed)[0] for seed in seeds)
    return ward, re.findall(r"127.0.0.1:(\d+)", text), seeds, Members(bound.federation_id, bound.sections, publics)


async def test_a_node_averages_with_it_in_each_role(tmp_path, p2pfl):
    ward, ports, seeds, members = star(tmp_path)
    start = {i: np.random.default_rng(i).normal(size=D).astype("float32") for i in (0, 1, 3, 4)}
    peers = {i: Careless(members, seeds[i], 2, x, SAMPLES[i], reach=2, rounds=8) for i, x in start.items()}
    peers[1].forgets = peers[3].forgets = True
    run = (sys.executable, "-m", "p2pfl", "run", ward, "--node", "node2", "-v")
    node = await asyncio.create_subprocess_exec(*run, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(60):
            while b"listening" not in await node.stderr.readline():
                assert node.returncode is None
            dials = [dial(peers[i], f"http://127.0.0.1:{ports[2]}/p2pfl") for i in (0, 3)]
            await asyncio.gather(*dials, *(listen(peers[i], int(ports[i])) for i in (1, 4)))
            assert await node.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            node.kill()
        await node.wait()
    assert p2pfl("export", ward / "node2", "-o", "w.safetensors").code == 0
    end = {i: peer.edge.x for i, peer in peers.items()} | {2: safetensors.numpy.load_file("w.safetensors")["w"]}
    before, after = (sum(SAMPLES[i] * np.float64(x) for i, x in xs.items()) for xs in (start, end))
    assert np.abs(after - before).max() < 1e-3
    far, near = (max(np.abs(x - before / sum(SAMPLES)).max() for x in xs.values()) for xs in (start, end))
    assert near < far / 4
    result = json.loads((ward / "node2/state/result.json").read_text())
    assert (result["alarms"], [each["faults"] for each in result["neighbors"]]) == ({}, [{}] * 4)
    assert [(peer.broken, peer.edge.incarnation) for peer in peers.values()] == [(True, each) for each in (0, 1, 1, 0)]
    assert min(peer.edge.exchanges for peer in peers.values()) >= 8 + 10
