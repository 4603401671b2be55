"""Small federations whose task needs no torch."""

from __future__ import annotations

import pytest

from p2pfl.crypto.identity import Identity, public_text

HEAD = """
[federation]
name = "ward"
seed = 3
topology = "{topology}"

[task]
name = "quadratic"
size = 12

[training]
rounds = {rounds}
local_steps = 2
closing_rounds = 4

[gossip]
linger_s = 2
"""


@pytest.fixture
def ward(tmp_path):
    """Writes a federation file; returns its path."""

    def ward(nodes=4, topology="ring", rounds=6):
        keys = [public_text(Identity.generate().public) for _ in range(nodes)]
        tables = [f'[[node]]\nname = "node{index}"\nkey = "{key}"\n' for index, key in enumerate(keys)]
        path = tmp_path / "ward.toml"
        path.write_text(HEAD.format(topology=topology, rounds=rounds) + "\n".join(tables), encoding="utf-8")
        return path

    return ward
