"""Write what the code of an earlier commit says: `python tests/versions/make_golden.py COMMIT FILE`; where FILE ends in
.tar.gz, a federation of three small tables that it has begun, with its keys, states and report.

Each message of its own kit as a frame, each message of its extension channels, one session between two nodes with fixed
keys (the handshake, and what the dialing end seals), and the frames of a relay. A file is written once, and never
again: it is what nodes of that version send, and expect.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def record(commit: str) -> dict[str, object]:
    """Record what the code on PYTHONPATH says."""
    from message_kit import ASIDE, GOLDEN  # noqa: PLC0415 - of that commit
    from msgspec.json import encode as as_json  # noqa: PLC0415
    from nacl.public import PrivateKey  # noqa: PLC0415

    from p2pfl.core.messages import LEAST_VERSION, PROTOCOL_VERSION  # noqa: PLC0415
    from p2pfl.crypto.identity import Identity  # noqa: PLC0415
    from p2pfl.crypto.session import (  # noqa: PLC0415
        FederationBinding,
        Initiator,
        Responder,
        Session,
    )
    from p2pfl.net.greeting import Notice, Word  # noqa: PLC0415
    from p2pfl.wire import encode  # noqa: PLC0415

    frames = [(message, b"".join(encode(message))) for message, *_ in GOLDEN]
    sides = [(channel, message, channel.pack(message).body) for channel, message, *_ in ASIDE]
    binding = FederationBinding(federation_id=bytes([1]) * 32, sections=(("topology", bytes(32)),))
    one, other = (Identity(bytes([number]) * 32) for number in (1, 2))
    dialer = Initiator(one, other.public, binding, ephemeral=PrivateKey(bytes([3]) * 32))
    listener = Responder(other, frozenset({one.public}).__contains__, binding, ephemeral=PrivateKey(bytes([4]) * 32))
    first = dialer.first()
    second = listener.first(first)
    third = dialer.second(second)
    session = Session(dialer.keys)
    boot = bytes([5]) * 16
    said = [Notice(Word.GREETING, boot).pack(), Notice(Word.OPEN, boot, 1).pack(), *(raw for _, raw in frames)]
    return {
        "commit": commit,
        "versions": [LEAST_VERSION, PROTOCOL_VERSION],
        "frames": [[type(message).__name__, json.loads(as_json(message)), raw.hex()] for message, raw in frames],
        "sides": [
            [channel.name, type(message).__name__, json.loads(as_json(message)), raw.hex()]
            for channel, message, raw in sides
        ],
        "handshake": [first.hex(), second.hex(), third.hex()],
        "plain": [raw.hex() for raw in said],
        "sealed": [session.seal(raw).hex() for raw in said] + [session.seal(b"", final=True).hex()],
        "relay": relay_frames(one),
    }


def relay_frames(member: Any) -> list[str]:
    """What a relay and a member of that version say, in order; nothing in versions without these modules."""
    try:
        from p2pfl.features.relay import frames as relay  # noqa: PLC0415
        from p2pfl.features.relay.tickets import register  # noqa: PLC0415
    except ImportError:
        return []
    challenge = relay.Challenge(relay.VERSION, bytes([6]) * 32, 1_800_000_000)
    kind, number = relay.FrameKind, relay.pack_number
    return [
        frame.hex()
        for frame in (
            relay.pack_struct(kind.CHALLENGE, challenge),
            relay.pack_struct(kind.REGISTER, register(member, challenge, relay="relay:1", token=b"t" * 32)),
            number(kind.WELCOME, 0, relay.WINDOW_BYTES),
            number(kind.REFUSED, 0, relay.Refusal.EXPIRED),
            relay.pack(kind.OPEN, 1, bytes(32)),
            relay.pack(kind.ACCEPT, 1),
            relay.pack(kind.DATA, 1, b"sealed"),
            number(kind.CREDIT, 1, 1000),
            number(kind.CLOSE, 1, relay.Closing.NOT_HERE),
            number(kind.PING, 0, 7),
            number(kind.PONG, 0, 7),
        )
    ]


MOST_LOG = 20_000


def begin(tree: Path, folder: Path, file: str) -> None:
    """Let the code in `tree` learn until a node has logged some rounds; then it is stopped as by Ctrl-C."""
    draws = random.Random(1)
    for name in ("north", "south", "west"):
        ages = [draws.randrange(20, 90) for _ in range(40)]
        rows = [f"{age},{draws.randrange(10)},{int(age > 50 + draws.randrange(10))}" for age in ages]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *rows]) + "\n", encoding="ascii")
    command, about = [sys.executable, "-m", "p2pfl"], {"env": {**os.environ, "PYTHONPATH": str(tree)}, "cwd": folder}
    tables = ["north.csv", "south.csv", "west.csv"]
    subprocess.run([*command, "new", "ward", "--task", "csv", *tables, "--target", "outcome"], check=True, **about)
    settings = folder / "ward/federation.toml"
    settings.write_text(settings.read_text("utf-8").replace("\nrounds = 40 ", "\nrounds = 400 "), encoding="utf-8")
    with subprocess.Popen([*command, "launch", "ward"], **about) as launched:
        while sum(path.stat().st_size for path in folder.glob("ward/north/state/log-*")) < MOST_LOG:
            time.sleep(0.05)
        launched.send_signal(signal.SIGINT)
    left_out = {"lock", "node.log"}
    with tarfile.open(file, "w:gz") as archive:
        for name in (*tables, "ward"):
            archive.add(folder / name, name, filter=lambda info: None if Path(info.name).name in left_out else info)


def main(commit: str, file: str) -> None:
    from old_code import take_out  # noqa: PLC0415 - not where PYTHONPATH is that of a commit

    with tempfile.TemporaryDirectory() as folder:
        tree = take_out(commit, Path(folder))
        if file.endswith(".tar.gz"):
            (ward := Path(folder) / "ward").mkdir()
            begin(tree, ward, file)
            return
        environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'tests'}"}
        found = subprocess.run([sys.executable, __file__, commit], env=environment, check=True, capture_output=True)
    Path(file).write_bytes(found.stdout)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        json.dump(record(sys.argv[1]), sys.stdout, indent=1)
