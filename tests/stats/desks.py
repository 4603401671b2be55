"""Folders of made hospitals with `[stats]`, and a clock for their desks."""

from __future__ import annotations

import atexit
import csv
import math
import shutil
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from p2pfl import Federation
from p2pfl.config import load_config, load_node, node_file
from p2pfl.crypto.identity import Identity
from p2pfl.features.stats import QueryPolicy
from tests.stats.stats_world import SCHEMA, SITES, hospitals

POLICY = {"columns": ["age", "chol", "ill"], "to": ["north"], "by": "sex"}
COLUMNS = ("age", "chol", "sex", "ward", "ill")


class Clock:
    def __init__(self):
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self):
        return self.now

    def pass_by(self, **span):
        self.now += timedelta(**span)


def cells_of(columns):
    """Return the rows as a file has them."""
    names = {"sex": "fmx", "ward": "ab", "ill": ("no", "yes")}
    for row in zip(*(columns[name].tolist() for name in COLUMNS), strict=True):
        pairs = zip(COLUMNS, row, strict=True)
        yield [
            "" if math.isnan(value) else names[name][int(value)] if name in names else value for name, value in pairs
        ]


def write_table(folder, site, rows):
    with (folder / f"{site}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def policy_text(policy):
    lines = [f"{key} = {value!r}" for key, value in policy.items()]
    return "\n[stats]\n" + "\n".join(lines).replace("'", '"') + "\n"


def made_ward(folder, sites=SITES, policy=POLICY, **own):
    """Write the folder of a federation whose sites have tables; `own` has other policies by site, None: no table."""
    shutil.copytree(_template(tuple(sites)), folder, dirs_exist_ok=True)
    place = folder / "ward"
    for site in sites:
        chosen = own.get(site, policy)
        with (place / site / "node.toml").open("a", encoding="utf-8") as file:
            file.write("" if chosen is None else policy_text(chosen))
    return place


@cache
def _template(sites):
    """Make the folder without policies, once: keys take a while."""
    folder = Path(tempfile.mkdtemp(prefix="p2pfl-stats-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = SCHEMA.contents()
    place = Federation(task="csv", options=options, nodes=list(sites), topology="ring", rounds=1).save(folder / "ward")
    for site, columns in zip(sites, hospitals(), strict=False):
        write_table(folder, site, cells_of(columns))
        file = place / site / "node.toml"
        text = file.read_text(encoding="utf-8").split("\n[data]")[0] + f'\n[data]\npath = "../../{site}.csv"\n'
        file.write_text(text, encoding="utf-8")
    return folder


def desk_of(place, site, clock=None):
    federation = load_config(place)
    node = load_node(node_file(federation, site), federation, site)
    identity = Identity.load(node.key_file)
    return QueryPolicy(federation, node, identity, **({} if clock is None else {"now": clock}))
