"""Nodes with tables of their own agree on a schema over sockets: by sums of all of them, whoever dies in the middle."""

from __future__ import annotations

import asyncio
import tomllib

import numpy as np
import pytest

from p2pfl import Federation
from p2pfl.config import load_config, load_node, node_file
from p2pfl.crypto.identity import Identity
from p2pfl.errors import UserError
from p2pfl.features.sums import Post, Reveal, SumTalk, VectorReady, Wave, decode_statement
from p2pfl.features.tables.agreeing import agree, preview
from p2pfl.learn.table import own_proposal

NAMES = ["north", "east", "south", "west"]


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr("p2pfl.features.tables.agreeing.FAREWELL_S", 0.05)
    monkeypatch.setattr("p2pfl.features.tables.agreeing.AGAIN_S", 0.05)
    monkeypatch.setattr("p2pfl.features.tables.agreeing.FIRST_WAIT_S", 0.5)
    monkeypatch.setattr("p2pfl.features.sums.setup.LEAST_S", 0.1)


def make(folder, nodes=4, schema="agreed"):
    options = {"schema": schema, "target": "y"}
    place = Federation(task="csv", options=options, nodes=NAMES[:nodes], topology="ring").save(folder / "ward")
    for seed, name in enumerate(NAMES[:nodes]):
        rng = np.random.default_rng(seed)
        lines = [f"{x:.3f},{1 + n % 4},{n % 2}" for n, x in enumerate(rng.normal(5, 1 + seed, 40 + seed))]
        (place / name / "rows.csv").write_text("\n".join(["age,stage,y", *lines, ""]), encoding="utf-8")
        with (place / name / "node.toml").open("a") as file:
            file.write('path = "rows.csv"\n')
    return place


def files_of(folder, name):
    federation = load_config(folder)
    return federation, load_node(node_file(federation, name), federation, name)


async def agreed(folder, name):
    federation, node = files_of(folder, name)
    return await agree(federation, node, Identity.load(node.key_file))


def schemas(folder, names):
    return {(folder / name / "state" / "schema.toml").read_text(encoding="utf-8") for name in names}


async def test_all_keep_the_schema_of_all_rows_and_say_names_alone(tmp_path, hasty):
    ward = make(tmp_path)
    assert all(await asyncio.gather(*(agreed(ward, name) for name in NAMES)))
    (text,) = schemas(ward, NAMES)
    federation, _ = files_of(ward, "north")
    expected = preview(federation, [own_proposal(*files_of(ward, name)) for name in NAMES])
    document = tomllib.loads(text)
    for key in ("numeric", "categories", "means", "stds", "classes", "class_counts"):
        assert document[key] == expected.contents[key]
    said = (ward / "west" / "state" / "proposal.json").read_text(encoding="utf-8")
    assert '"count"' not in said
    assert '"values"' in said


@pytest.mark.parametrize(
    "step", [*(pytest.param(step, marks=pytest.mark.long) for step in (VectorReady, Wave)), Reveal]
)
async def test_a_node_that_dies_in_the_middle_gets_the_schema_when_it_is_back(tmp_path, hasty, monkeypatch, step):
    """The others need its figures, or have its part and pass the sums on to it."""
    ward, hear, died = make(tmp_path), SumTalk._take, asyncio.Event()

    def look(talk, peer, message):
        is_step = isinstance(message, Post) and isinstance(decode_statement(message.body), step)
        if is_step and talk._sums.settings.index == 2 and not died.is_set():
            died.set()
            tasks["south"].cancel()
            return
        hear(talk, peer, message)

    monkeypatch.setattr(SumTalk, "_take", look)
    tasks = {name: asyncio.create_task(agreed(ward, name)) for name in NAMES}
    async with asyncio.timeout(100):
        await died.wait()
        with pytest.raises(asyncio.CancelledError):
            await tasks["south"]
        assert not (ward / "south" / "state" / "schema.toml").exists()
        tasks["south"] = asyncio.create_task(agreed(ward, "south"))
        assert all(await asyncio.gather(*tasks.values()))
    assert len(schemas(ward, NAMES)) == 1


@pytest.mark.parametrize(
    ("nodes", "schema", "said"),
    [
        (2, "agreed", r"north/node.toml: data.show_figures: of two nodes .* or the name of a schema file"),
        (3, "agreed-openly", r'agreed-openly is gone.*allowed: "agreed"'),
    ],
)
async def test_figures_are_summed_by_three_nodes_or_more_and_shown_only_where_allowed(
    tmp_path, hasty, nodes, schema, said
):
    ward = make(tmp_path, nodes=nodes, schema=schema)
    with pytest.raises(UserError, match=said):
        await agreed(ward, "north")


async def test_two_nodes_that_allow_it_show_each_other_their_figures(tmp_path, hasty):
    ward = make(tmp_path, nodes=2)
    for name in NAMES[:2]:
        file = ward / name / "node.toml"
        file.write_text(file.read_text() + "show_figures = true\n", encoding="utf-8")
    assert all(await asyncio.gather(*(agreed(ward, name) for name in NAMES[:2])))
    (text,) = schemas(ward, NAMES[:2])
    federation, _ = files_of(ward, "north")
    expected = preview(federation, [own_proposal(*files_of(ward, name)) for name in NAMES[:2]])
    assert tomllib.loads(text)["means"] == expected.contents["means"]
    assert '"count"' in (ward / "east" / "state" / "proposal.json").read_text(encoding="utf-8")


async def test_what_cannot_be_summed_is_the_nodes_own_error(tmp_path, hasty):
    ward = make(tmp_path, nodes=3)
    file = ward / "east" / "rows.csv"
    file.write_text(file.read_text().replace("age", "age", 1) + "1e90,1,0\n" * 5, encoding="utf-8")
    tasks = {name: asyncio.create_task(agreed(ward, name)) for name in NAMES[:3]}
    with pytest.raises(UserError, match=r"age: .* cannot be summed"):
        await tasks.pop("east")
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
