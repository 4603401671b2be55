"""Estimate the memory that a simulation needs before anything is built: does it fit this machine?"""

from __future__ import annotations

import mmap
from pathlib import Path

from p2pfl.errors import UserError

FLOAT_BYTES = 4
BASE_BYTES = 330 * 2**20
"""Python, numpy, torch and the data that all nodes share."""
VECTORS_PER_NODE, VECTORS_PER_EDGE = 5, 6
"""Per node: the model, and model, variate and result of the round in flight, and its copy for tests. Per edge: two
replicas and the flow at each end.
"""
PERSONAL_COPIES = 3
"""Copies of a personal part: in the module, after the last round, and in the state to which a crash returns."""
PAYLOADS_PER_EDGE = 4
"""A Request and a Reply, each pending at one end and in flight or in the log."""
OBJECT_BYTES_PER_NODE, OBJECT_BYTES_PER_EDGE = 150_000, 60_000
"""Objects, and what is freed only at the end. Measured on rings of the digits' model: .40 GB in all with 100 nodes and
.70 with 1,000, where this estimates .39 and .68.
"""
TRAINING_VECTORS_PER_ROW = 6
"""Vectors of a training node: parameters, gradients, optimizer state and autograd's copies."""
ROWS_AT_ONCE = 256
"""The maximum number of nodes trained in one batched call."""
DESCRIBED_BYTES_PER_NODE = 1_500
"""A member and its edges as a federation describes them, in any simulator."""
ARRAYS_BYTES_PER_NODE, ARRAYS_BYTES_PER_EDGE = 15_000, 15_000
"""Beside the vectors of arrays: report, clock, and above all the spectrum of the graph. Measured with 1,000 and 10,000
nodes of degree 2, 4 and 8.
"""
USABLE_SHARE = 0.9
"""The fraction of available memory that may be planned; the rest covers what the estimate misses."""


def needed_bytes(*, nodes: int, edges: int, size: int, payload_bytes: int, personal: int = 0) -> int:
    """Estimate the bytes that a run takes at its peak.

    `size` is the number of shared values, `payload_bytes` the total size of one payload on every edge. `personal` is
    the number of values that each node does not share; if there are any, each node has its own module.
    """
    rows = min(nodes, ROWS_AT_ONCE)
    vectors = nodes * VECTORS_PER_NODE + edges * VECTORS_PER_EDGE + rows * TRAINING_VECTORS_PER_ROW
    modules = nodes * (size + PERSONAL_COPIES * personal) if personal else 0
    payloads = PAYLOADS_PER_EDGE * payload_bytes
    objects = nodes * OBJECT_BYTES_PER_NODE + edges * OBJECT_BYTES_PER_EDGE
    return BASE_BYTES + (vectors * size + modules) * FLOAT_BYTES + payloads + objects


def check_memory(
    *, nodes: int, edges: int, size: int, payload_bytes: int, personal: int = 0, root: Path = Path("/")
) -> None:
    """Refuse a run that does not fit. Raises UserError, saying what to change, if the run exceeds the available memory
    and that is known.
    """
    needed = needed_bytes(nodes=nodes, edges=edges, size=size, payload_bytes=payload_bytes, personal=personal)
    refuse_too_large(needed, nodes=nodes, edges=edges, size=size, root=root)


def arrays_bytes(*, nodes: int, edges: int, size: int, in_step: bool, replicas: bool, corrected: int) -> int:
    """Estimate the bytes that arrays take at their peak: with `replicas` a compressor keeps what was shown, `corrected`
    are the vectors that the method remembers at a node.

    In step each node has its model and one product, what it has shown and its flow; apart a model and the start of a
    round, flow and correction, and each edge two replicas, or up to two slots while they grow.
    """
    vectors = nodes * (2 + replicas + corrected) if in_step else nodes * (2 + 2 * corrected) + 2 * edges
    return BASE_BYTES + vectors * size * FLOAT_BYTES + nodes * ARRAYS_BYTES_PER_NODE + edges * ARRAYS_BYTES_PER_EDGE


def refuse_too_large(needed: int, *, nodes: int, edges: int, size: int, root: Path = Path("/")) -> None:
    """Raise UserError, saying what to change, if so many bytes exceed the available memory and that is known."""
    available = available_bytes(root)
    if available is None or needed <= available * USABLE_SHARE:
        return
    raise UserError(
        f"{nodes} nodes with {edges} edges and a model of {size} parameters need about {_gigabytes(needed)}; "
        f"{_gigabytes(available)} of memory are available",
        key="memory",
        allowed="fewer nodes, a graph of lower degree, a smaller model, or a machine with more memory",
    )


def check_count(nodes: int, *, each: int = DESCRIBED_BYTES_PER_NODE, root: Path = Path("/")) -> None:
    """Refuse nodes that cannot fit at `each` so many bytes, before any is made. Raises UserError that names the need
    and what is available.
    """
    needed = BASE_BYTES + nodes * each
    available = available_bytes(root)
    if available is not None and needed > available * USABLE_SHARE:
        text = f"so many need {_gigabytes(needed)} at least; {_gigabytes(available)} of memory are available"
        allowed = "fewer nodes, or a machine with more memory"
        raise UserError(text, key="--nodes", value=nodes, allowed=allowed)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still take: the lowest limit among machine, control groups and `ulimit
    -v`.
    """
    known = [left for left in (_machine(root), _address_space(root), *_groups(root)) if left is not None]
    return min(known, default=None)


def _machine(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable" and rest.split():
            kilobytes = rest.split()[0]
            return int(kilobytes) * 1024 if kilobytes.isdecimal() else None
    return None


def _address_space(root: Path) -> int | None:
    pages = _text(root / "proc/self/statm").split()
    for line in _text(root / "proc/self/limits").splitlines():
        words = line.removeprefix("Max address space").split()
        if line.startswith("Max address space") and words and words[0].isdecimal() and pages and pages[0].isdecimal():
            return max(0, int(words[0]) - int(pages[0]) * mmap.PAGESIZE)
    return None


def _groups(root: Path) -> list[int | None]:
    """Return the limits of each control group that this process is in: version 2, then version 1 as in containers."""
    mount = root / "sys/fs/cgroup"
    own = [line[3:].strip("/\n ") for line in _text(root / "proc/self/cgroup").splitlines() if line.startswith("0::")]
    inner = mount / own[0] if own else mount
    folders = [inner, *inner.parents] if inner != mount else [mount]
    found = [
        _remaining(folder / "memory.max", folder / "memory.current", folder / "memory.stat", "inactive_file")
        for folder in folders
        if folder == mount or mount in folder.parents
    ]
    old = mount / "memory"
    limit, usage = old / "memory.limit_in_bytes", old / "memory.usage_in_bytes"
    return [*found, _remaining(limit, usage, old / "memory.stat", "total_inactive_file")]


def _remaining(limit: Path, usage: Path, stat: Path, reclaimable: str) -> int | None:
    """Return the limit minus what is in use; file caches that the kernel would release do not count as used."""
    most, used = _text(limit).strip(), _text(usage).strip()
    if not most.isdecimal() or not used.isdecimal():
        return None
    given_up = [line.split()[1] for line in _text(stat).splitlines() if line.startswith(reclaimable + " ")]
    return max(0, int(most) - int(used) + sum(int(text) for text in given_up if text.isdecimal()))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
