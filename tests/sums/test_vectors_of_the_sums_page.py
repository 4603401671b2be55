"""The bytes at the end of the page of secure sums are what the code makes of the secrets there."""

import re
from pathlib import Path

import numpy as np

from p2pfl.crypto.identity import Identity
from p2pfl.features import sums

PAGE = (Path(__file__).parents[2] / "docs/reference/protocol-sums.md").read_text(encoding="ascii")
LINES = re.findall(r"^(\w+): ([0-9a-f]+(?:\n  [0-9a-f]+)*)$", PAGE, re.MULTILINE)
V = {name: bytes.fromhex(value) for name, value in LINES}


def same(**made):
    assert {name: bytes(value).hex() for name, value in made.items()} == {name: V[name].hex() for name in made}


def secret(member, which):
    """The box, mask key or seed of a member, and zeros: a number drawn from 48 bytes."""
    return V[f"secrets_{member}"][32 * which :][:32] + bytes(16)


def test_a_sum_of_three():
    common = {"federation": V["federation"], "members": (bytes(32),) * 3, "life": 1, "sums": 1}
    settings = [sums.SumSettings(index=m, **common) for m in range(3)]
    drawn = (secret(m, which) for m in range(3) for which in range(3))
    secrets = [sums.SetupSecrets(lambda _: next(drawn), 1) for _ in range(3)]
    keys = [each.keys(1, 1) for each in secrets]
    bodies = [sums.encode_statement(each) for each in keys]
    opening = sums.SetupOpening(members=b"\7", keys=b"".join(sums.id_of(m, body) for m, body in enumerate(bodies)))
    setup_id = sums.id_of(0, sums.encode_statement(opening))
    same(keys_0=bodies[0], keys_id_0=sums.id_of(0, bodies[0]), opening=sums.encode_statement(opening), setup=setup_id)
    same(signature=Identity(V["seed"]).sign(settings[0].domain() + bodies[0]))
    setups = [sums.SumSetup(settings[m], setup_id, dict(enumerate(keys)), secrets[m]) for m in range(3)]
    for setup in setups:
        setup.roster = frozenset(range(3))
    lines = iter((V["line_seed"], V["line_mask"]))
    same(parcel_0_1=setups[0].deal(lambda _: next(lines) + bytes(16))[1])
    masked = [setup.masked(np.array([m + 1, 10 * m], "<u8"), 0) for m, setup in enumerate(setups)]
    total = sum(masked[1:], masked[0])
    same(own_0=sums.own_seed(secret(0, 2)[:32], setup_id, 0), y_0=masked[0], total=total)
    same(total_digest=sums.total_digest(setup_id, 0, b"\7", total.tobytes()))
    revealed = {m: secret(m, 2)[:32] for m in range(3)}
    assert setups[1].unmasked(total, 0, range(3), revealed).tolist() == [6, 30]
