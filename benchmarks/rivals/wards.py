"""Wards in a box: five hospitals, each with a 30 Mbit/s line, train a 3-d convolutional model of 25 million numbers.

Each site is a network namespace with a line of 30 Mbit/s each way (a token bucket at both ends); `hub` is one more
machine, at a hoster, without a limit. site4 is behind masquerade: it dials, nobody dials it. Nothing leaves site5 but
by CONNECT to port 443, through tinyproxy. Volumes are made from a seed: which of four kinds of lesion is in 16^3
voxels. Real ones have a thousand times as many, which two cores cannot learn for five sites; the model is as large as
a real one, and so are the bytes. Sites differ in kinds, brightness and noise.

Every --kill-every minutes the next site's node is killed (SIGKILL) and started again by the same command. A site holds
the models of its neighbors in the clear (held_models_of), with --hide nobody's. There is no TLS around the sessions, so
that a tap sees what relay and proxy see: a byte of a full packet has 8 bits of entropy, one of float32 weights fewer.
Figures are in figures.json at the end, rounds as they come in progress.jsonl.

Usage, as root: python benchmarks/rivals/wards.py [--hide] [--kill-every 3] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).absolute().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "internet")]
SITES, HUB = ("site1", "site2", "site3", "site4", "site5"), "hub"
BEHIND_NAT, BEHIND_PROXY = SITES[3:]
KBIT_S, RESTART_S = 30_000, 30  # starts again as in deploy/p2pfl@.service
KEYS = {"local_steps": 6, "batch_size": 8, "learning_rate": 0.1, "evaluate_every": 0, "max_wait_s": 60.0}
TASK = """
import sys
sys.path.insert(0, {folder!r})
from wards import SITES, make_model, volumes
from p2pfl import Task

task = Task(model=lambda: make_model({wide}), data=lambda node: (volumes(SITES.index(node.name)), volumes(None, 128)))
"""
EDGE, KINDS, WIDE = 16, 4, 512


@contextmanager
def network(folder: Path) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Build the net in `folder`, which exists, and take it away at the end.

    Yields the net, the machines by name (`start` and `run` commands there, `ipv4`), and what stands at each site's end
    of its line: the machine, or its router. Names as site1.example.org lead to site1 to site3 and hub from everywhere
    but site5, which knows its proxy alone: http://proxy.example.org:3128.
    """
    from internet_in_a_box import Internet, Way  # noqa: PLC0415 - what has no namespaces needs it not

    (folder / "box").mkdir()
    with Internet(folder / "box") as net:
        ends = {name: net.host(name) for name in (HUB, *SITES[:3])}
        [net.give_name(f"{name}.example.org", host) for name, host in ends.items()]
        nat, proxied = net.site("ward4"), net.site("ward5", Way.PROXY)
        machines = ends | {BEHIND_NAT: nat.host(BEHIND_NAT), BEHIND_PROXY: proxied.host(BEHIND_PROXY)}
        ends |= {BEHIND_NAT: nat.router, BEHIND_PROXY: proxied.router}
        [ends[name].slow(KBIT_S, both=True) for name in SITES]
        proxied.start_proxy(folder / "proxy")
        yield net, machines, ends


def make_model(wide: int = WIDE) -> Any:
    """Return a model of (n, 1, 16, 16, 16) volumes with 25 million float32 numbers, at the first weights of all."""
    import torch  # noqa: PLC0415 - the script does not wait for it
    from torch import nn  # noqa: PLC0415 - as above

    sizes, layers = (1, wide // 16, wide // 4, wide), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for before, after in pairwise(sizes):
            layers += [nn.Conv3d(before, after, 3, 2, 1), nn.GroupNorm(4, after), nn.ReLU()]
        head = [nn.Linear(8 * wide, 9 * wide), nn.ReLU(), nn.Linear(9 * wide, 2 * wide), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(2 * wide, KINDS))


def volumes(site: int | None, count: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """Return a site's (0 to 4) volumes, (count, 1, 16, 16, 16) float32, and kinds; those of None test all, alike."""
    rng = np.random.default_rng([7, 99 if site is None else site])
    mix = np.full(KINDS, 0.1 / KINDS) + 0.9 * np.roll([0.5, 0.3, 0.15, 0.05], site or 0)
    kinds = rng.choice(KINDS, count, p=None if site is None else mix / mix.sum())
    sites = rng.integers(len(SITES), size=count) if site is None else np.full(count, site)
    grid = np.indices((EDGE,) * 3, np.float32)
    drawn = [_lesion(rng, grid, kind) * (1.2 + 0.2 * at) + 0.1 * at for kind, at in zip(kinds, sites, strict=True)]
    noise = rng.standard_normal((count, *(EDGE,) * 3)) * (0.1 + 0.03 * sites)[:, None, None, None]
    return (np.stack(drawn) + noise)[:, None].astype(np.float32), kinds.astype(np.int64)


def _lesion(rng: np.random.Generator, grid: np.ndarray, kind: int) -> np.ndarray:
    """Return a ball, a shell, a rod or two small balls, somewhere."""
    away = grid - rng.uniform(5, 10, (3, 1, 1, 1))
    size, far = rng.uniform(2.5, 4.0), np.sqrt((away**2).sum(0))
    if kind < 2:
        return far < size if kind == 0 else abs(far - size - 0.5) < 0.8
    along = rng.standard_normal((3, 1, 1, 1))
    along /= np.sqrt((along**2).sum())
    if kind == 2:
        onto = (away * along).sum(0)
        return (far**2 - onto**2 < 1.5**2) & (abs(onto) < 2 * size)
    return np.minimum(((away - 3 * along) ** 2).sum(0), ((away + 3 * along) ** 2).sum(0)) < (0.65 * size) ** 2


class Site:
    """A hospital's node and what starts it again, as systemd does; one process after the other."""

    def __init__(self, ward: Any, name: str) -> None:
        self.ward, self.name = ward, name
        self.peak_mb, self.rounds, self.kills, self.code = 0, 0, [], None
        self.thread = threading.Thread(target=self._supervise, daemon=True)

    def _supervise(self) -> None:
        while self.code not in (0, 2, 3):
            self.ward.start(self.name)
            self.code = self.ward.processes[self.name].wait()
            time.sleep(RESTART_S if self.code else 0)

    def look(self) -> None:
        """Ask the node for its round, and the kernel for its peak of memory."""
        self.rounds = self.ward.status(self.name).get("rounds", self.rounds)
        with suppress(OSError, TypeError, KeyError):  # between two processes
            text = Path(f"/proc/{self.ward.processes[self.name].pid}/status").read_text(encoding="ascii")
            self.peak_mb = max(self.peak_mb, int(re.search(r"VmHWM:\s+(\d+)", text)[1]) // 1000)

    def kill(self, now_s: float) -> None:
        if self.ward.processes[self.name].poll() is None:
            self.kills.append({"s": round(now_s), "round": self.rounds})
            self.ward.processes[self.name].kill()

    def figures(self) -> dict[str, Any]:
        file = self.ward.home(self.name) / self.name / "state" / "result.json"
        result = json.loads(file.read_text(encoding="utf-8"))
        seen = [row["name"] for row in result["neighbors"] if row["exchanges"]]
        resumed = [int(each) for each in re.findall(r"resuming after round (\d+)", self.ward.log(self.name))]
        told = {"held_models_of": seen, "kills": self.kills, "resumed_after": resumed, "peak_mb": self.peak_mb}
        return {key: result.get(key) for key in ("rounds", "accuracy", "rounds_unmixed")} | told


def found(folder: Path, machines: dict[str, Any], options: argparse.Namespace) -> Any:
    """Make the federation as docs/how-to/relay.md says, copy it to the machines, and start the relay."""
    import faces  # noqa: F401, PLC0415 - the tests' names of p2pfl
    from ward import P2PFL, STATUS, Ward, change  # noqa: PLC0415 - it needs p2pfl

    new = ["--relay", f"ws://{HUB}.example.org:443/p2pfl", *(["--hide-models"] if options.hide else [])]
    places = {name: f"{name}.example.org:443" for name in SITES[:3]}
    own = dict.fromkeys(places, STATUS + 'listen = "0.0.0.0:443"\n')
    own[BEHIND_PROXY] = STATUS + '[network]\nproxy = "http://proxy.example.org:3128"\n'
    chosen = {"rounds": options.rounds, "compressor": options.compressor}
    ward = Ward(folder / "ward", {name: machines[name] for name in SITES}, *new, places=places, own=own, **chosen)
    task = TASK.format(folder=str(Path(__file__).absolute().parent), wide=options.wide)
    for home in (ward.ward, *map(ward.home, SITES)):
        for key, value in (KEYS | ({"outer": '"mean"'} if options.hide else {})).items():
            change(home / "federation.toml", f"{key} =", f"{key} = {value}")
        (home / "task.py").write_text(task, encoding="utf-8")
    with (folder / "relay.log").open("wb") as log:
        words = ("relay", "--listen", "0.0.0.0:443", "--federation", ward.ward)
        machines[HUB].start(*P2PFL, *words, stdout=log, stderr=log)
    return ward


def learn(sites: dict[str, Site], ends: dict[str, Any], folder: Path, kill_every: float) -> float:
    """Start all, kill one after the other, and return after how many minutes all were done."""
    began, turn, killed = time.monotonic(), cycle(("site2", BEHIND_NAT, BEHIND_PROXY, "site1", "site3")), 0
    [site.thread.start() for site in sites.values()]
    while any(site.thread.is_alive() for site in sites.values()):
        time.sleep(5)
        [site.look() for site in sites.values()]
        now = time.monotonic() - began
        whole = all(site.thread.is_alive() for site in sites.values())  # who comes back to nobody waits for somebody
        if kill_every and whole and now > (killed + 1) * kill_every * 60:
            killed += 1
            sites[next(turn)].kill(now)
        row = {"s": round(now), "rounds": {name: site.rounds for name, site in sites.items()}}
        with (folder / "progress.jsonl").open("a") as file:
            file.write(json.dumps(row | {name: traffic(ends[name]) for name in SITES}) + "\n")
    return (time.monotonic() - began) / 60


def traffic(host: Any) -> dict[str, float]:
    """Return the megabytes that came into a host, or its site, and went out."""
    text = host.run("cat", "/proc/net/dev").stdout
    fields = next(line for line in text.splitlines() if line.strip().startswith("eth0:")).split()
    return {"in_mb": int(fields[1]) / 1e6, "out_mb": int(fields[9]) / 1e6}


def tap(file: Path) -> None:
    """Count, in this namespace, the bytes of full TCP packets by value, for as long as this process lives."""
    counts, until = np.zeros(256, np.int64), 0.0
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as line:
        while True:
            packet = line.recv(65536)
            if len(packet) > 1000 and packet[9] == socket.IPPROTO_TCP:
                counts += np.bincount(np.frombuffer(packet, np.uint8)[20 + (packet[32] >> 4) * 4 :], minlength=256)
            if time.monotonic() > until:
                until = time.monotonic() + 2
                file.write_text(json.dumps({"bytes": int(counts.sum()), "bits_per_byte": entropy(counts)}))


def entropy(counts: np.ndarray) -> float:
    """Return the bits of entropy of a byte: 8 for ciphertext, less for the numbers of a model."""
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return round(float(-(shares * np.log2(shares)).sum()), 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "bench-out" / "wards", help="a folder that is not there")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--kill-every", type=float, default=10.0, metavar="MINUTES", help="0: nobody is killed")
    parser.add_argument("--hide", action="store_true", help="hidden models: rounds are secure sums")
    parser.add_argument("--compressor", default="q4")
    parser.add_argument("--wide", type=int, default=WIDE, help=f"the model's width, a multiple of 64: {WIDE}")
    parser.add_argument("--tap", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tap:
        tap(options.tap)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the box is taken away
    folder = options.work.absolute()
    folder.mkdir(parents=True)
    with network(folder) as (_, machines, ends):
        ward = found(folder, machines, options)
        sites = {name: Site(ward, name) for name in SITES}
        taps = [folder / f"{name}.tap" for name in (HUB, BEHIND_PROXY)]
        [ends[file.stem].start(sys.executable, __file__, "--tap", file) for file in taps]
        minutes = learn(sites, ends, folder, options.kill_every)
        moved = {name: traffic(end) for name, end in ends.items()}
        figures = {name: site.figures() | moved[name] for name, site in sites.items()}
    most = max(row["rounds"] for row in figures.values())
    weights = np.concatenate([p.detach().numpy().ravel() for p in make_model(options.wide).parameters()])
    told = {key: value for key, value in vars(options).items() if key not in ("work", "tap")}
    told |= {"parameters": len(weights), "minutes": minutes, "minutes_a_round": minutes / options.rounds}
    told |= {"worst_accuracy": min(row["accuracy"] for row in figures.values()), HUB: moved[HUB]}
    told["sites"] = {name: row | {"rounds_lost": most - row["rounds"]} for name, row in figures.items()}
    told["bits_per_byte"] = {"float32": entropy(np.bincount(weights.view(np.uint8), minlength=256))}
    told["bits_per_byte"] |= {file.stem: json.loads(file.read_text()) for file in taps}
    (folder / "figures.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
