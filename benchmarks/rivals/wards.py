"""Wards in a box: five hospitals, each with a 30 Mbit/s line, train a 3-d convolutional model of 25 million numbers.

Each site is a network namespace with a line of 30 Mbit/s each way (a token bucket at both ends); `hub` is one more
machine, at a hoster, without a limit. site4 is behind masquerade: it dials, nobody dials it. Nothing leaves site5 but by
CONNECT to port 443, through tinyproxy. Volumes are made from a seed: which of four kinds of lesion is in 16^3 voxels.
Real ones have a thousand times as many, which two cores cannot learn for five sites; the model is as large as a real
one, and so are the bytes. Sites differ in kinds, brightness and noise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).absolute().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
SITES, HUB = ("site1", "site2", "site3", "site4", "site5"), "hub"
BEHIND_NAT, BEHIND_PROXY = "site4", "site5"
KBIT_S = 30_000
EDGE, KINDS, WIDE = 16, 4, 512


@contextmanager
def network(folder: Path, kbit_s: int = KBIT_S) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Build the net in `folder`, which exists, and take it away at the end.

    Yields the net, the machines by name (`start` and `run` commands there, `ipv4`), and what stands at each site's end
    of its line: the machine, or its router. Names as site1.example.org lead to site1 to site3 and hub from everywhere
    but site5, which knows its proxy alone: http://proxy.example.org:3128.
    """
    from internet_in_a_box import Internet, Way  # noqa: PLC0415 - what has no namespaces needs it not

    (folder / "box").mkdir()
    with Internet(folder / "box") as net:
        ends = {name: net.host(name) for name in (HUB, *SITES[:3])}
        for name, host in ends.items():
            net.give_name(f"{name}.example.org", host)
        nat, proxied = net.site("ward4"), net.site("ward5", Way.PROXY)
        machines = ends | {BEHIND_NAT: nat.host(BEHIND_NAT), BEHIND_PROXY: proxied.host(BEHIND_PROXY)}
        ends |= {BEHIND_NAT: nat.router, BEHIND_PROXY: proxied.router}
        for name in SITES:
            ends[name].slow(kbit_s, both=True)
        proxied.start_proxy(folder / "proxy")
        yield net, machines, ends


def make_model(wide: int = WIDE) -> Any:
    """Return a model of (n, 1, 16, 16, 16) volumes with 25 million float32 numbers, at the first weights of all."""
    import torch  # noqa: PLC0415 - without namespaces nobody waits for it
    from torch import nn  # noqa: PLC0415

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
    if kind == 0:
        return far < size
    if kind == 1:
        return abs(far - size - 0.5) < 0.8
    along = rng.standard_normal((3, 1, 1, 1))
    along /= np.sqrt((along**2).sum())
    if kind == 2:
        onto = (away * along).sum(0)
        return (far**2 - onto**2 < 1.5**2) & (abs(onto) < 2 * size)
    return np.minimum(((away - 3 * along) ** 2).sum(0), ((away + 3 * along) ** 2).sum(0)) < (0.65 * size) ** 2
