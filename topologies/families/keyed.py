"""Rings whose order is a hash of the members' names: whoever has the list of members knows every edge, and one member
more or less changes only the places next to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from topologies.families.parts import Ints, cycle, together
from topologies.family import Family, Request
from topologies.graph import Ends
from topologies.parameters import whole


def keyed_order(names: Sequence[str], ring: int, seed: int) -> Ints:
    """The members around the ring of this number, by the 16-byte BLAKE2b of their names, keyed with the seed and
    salted with the ring. Shape (nodes,).
    """
    key, salt = blake2b(str(seed).encode()).digest(), ring.to_bytes(8, "big")
    digests = b"".join(blake2b(name.encode(), digest_size=16, key=key, salt=salt).digest() for name in names)
    places = np.frombuffer(digests, dtype=">u8").reshape(-1, 2)
    return np.lexsort((places[:, 1], places[:, 0]))


def keyed_rings(wanted: Request) -> Ends:
    names = wanted.called()
    return together(*(cycle(keyed_order(names, ring, wanted.seed)) for ring in range(wanted["r"])))


FAMILIES: Mapping[str, Family] = {
    "keyed-rings": Family(
        rule="the union of r rings, each in the order of a hash of seed, ring and name: stable when members change",
        degree="2 r, less where rings share an edge",
        build=keyed_rings,
        parameters={"r": whole(2, 1, "how many rings", maximum=1000)},
        expected=lambda wanted: float(wanted.nodes * wanted["r"]),
        connectivity="about 2 r - 2 sqrt(2 r - 1)",
        source="Law and Siu 2003, doi:10.1109/INFCOM.2003.1209234; Hua et al. 2024, arXiv:2409.05331",
        random=True,
        edges_limit=10_000_000,
        by_name=True,
    ),
}
