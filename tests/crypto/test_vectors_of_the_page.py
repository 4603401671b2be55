"""The bytes on the page of test vectors are what the code makes of the keys there."""

import re
from pathlib import Path
from zlib import crc32

import numpy as np
from nacl.public import PrivateKey

from p2pfl.compress import make_compressor
from p2pfl.core import ApplyReply, ApplyRequest, EdgeRecord, Freeze, Ready
from p2pfl.crypto.identity import Identity
from p2pfl.crypto.session import FederationBinding, Initiator, Leg, Responder, Session, agree, digest
from p2pfl.engine import Codecs, Engine, NodeState
from p2pfl.wire import Offer, PartialBody, encode

PAGE = (Path(__file__).parents[2] / "docs/reference/vectors.md").read_text(encoding="ascii")
LINES = re.findall(r"^(\w+): ([0-9a-f]+(?:\n  [0-9a-f]+)*)$", PAGE, re.MULTILINE)
V = {name: bytes.fromhex(value) for name, value in LINES}


def same(**made):
    assert {name: bytes(value).hex() for name, value in made.items()} == {name: V[name].hex() for name in made}


def test_the_handshake_and_a_stream_that_is_rekeyed():
    one, other, e_i = Identity(V["seed_i"]), Identity(V["seed_r"]), PrivateKey(V["e_i"])
    settings = ("federation.name", V["setting_1"]), ("model", V["setting_2"])
    binding = FederationBinding(federation_id=V["federation"], sections=settings)
    dialer = Initiator(one, other.public, binding, ephemeral=e_i)
    listener = Responder(other, {one.public}.__contains__, binding, ephemeral=PrivateKey(V["e_r"]))
    m2 = listener.first(m1 := dialer.first())
    m3 = dialer.second(m2)
    same(public_i=one.public, public_r=other.public, m1=m1, m2=m2, m3=m3)
    secrets = agree(e_i, m2[:32], m1, m2[:32])
    leg_r, th2 = Leg.of_responder(secrets), digest("th2", secrets.th1, m2[32:])
    leg_i = Leg.of_initiator(secrets, th2)
    same(th1=secrets.th1, prk=secrets.prk, th2=th2, th3=digest("th3", th2, m3), stream_i2r=dialer.keys.send)
    same(blinded_r=binding.blind(secrets.th1), seal_r=leg_r.seal_key, mac_r=leg_r.mac_key)
    same(blinded_i=binding.blind(th2), seal_i=leg_i.seal_key, mac_i=leg_i.mac_key, stream_r2i=dialer.keys.receive)
    opened = map(Session(listener.third(m3)).open, [V[f"sealed_{number}"] for number in range(1, 5)])
    assert [*opened] == [(V["greeting"], False), (V["text"], False), (b"", False), (b"", True)]


def test_frames_and_two_transactions():
    life = {"generation": 0, "life": 7, "process": 8, "trained": 0, "bound": 40, "begun": b"", "through": b""}
    hello = EdgeRecord().hello(version=0, closing=None, level=None, done=False, have_yours=False, **life)
    ready = Ready(version=3, trained=3, bound=40, known=crc32(b"\7|\1"), begun=b"\7", through=b"\1")
    part = PartialBody(2, V["request_1"][18:-12], 12, bytearray(V["request_1"][-12:]), 8).announce()
    same(offer=encode(Offer(least=9, most=10, channels=("vitals/1",)), 9)[0], hello=encode(hello)[0])
    same(ready=encode(ready)[0], part_held=encode(part, 9)[0])
    states = [NodeState.new(np.array(x, "<f4"), n, (p,)) for x, n, p in (([1, 2, 3], 30, 1), ([-1, 0.5, 4], 90, 0))]
    codecs = Codecs(make_compressor("none"))
    one, other = (Engine(index=index, state=state, codecs=codecs) for index, state in enumerate(states))
    for seq, echo, s in ((1, None, 0.0), (2, 1, 1.0)):
        place = {"peer": 1, "incarnation": 0, "seq": seq, "version": seq, "echo": echo, "weight": 15.0}
        request = one.run(Freeze(**place, staleness=s, pace_s=0.5, audit=True)).event.request
        asked = ApplyRequest(peer=0, request=request, factor=15.0 * s, weight=45.0, version=1, pace_s=0.25)
        reply = other.run(asked).event.reply
        one.run(ApplyReply(peer=1, reply=reply))
        made = {"request": b"".join(encode(request)), "digest": request.digest, "reply": b"".join(encode(reply))}
        made |= {"chain": other.state.edges[0].record.chain, "x_i": states[0].model, "x_j": states[1].model}
        same(**{f"{name}_{seq}": value for name, value in made.items()})
        states[0].model[:] = [1.5, 2.0, 2.5]
