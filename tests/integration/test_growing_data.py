"""Real nodes whose tables grow, break and are corrected while they run."""

from __future__ import annotations

import pytest

from p2pfl.node import learner_runner

COUNT, MORE = 30, 45
TASK = {"name": "csv", "target": "y", "numeric": ["x"], "classes": ["no", "yes"]}


def write(file, text):
    """Whole or not at all, as the docs advise."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def table(rows, broken=""):
    return "x,y\n" + "".join(f"{row / 10},{'yes' if row % 2 else 'no'}\n" for row in range(rows)) + broken


@pytest.fixture
def field(ward, monkeypatch):
    monkeypatch.setattr(learner_runner, "SETTLED_S", 0.02)
    made = ward(3, training={"rounds": 100_000, "local_steps": 1}, task=TASK)
    for name in made.names:
        write(made.folder / name / "mine.csv", table(COUNT))
        made.write_node(name, data={"path": "mine.csv", "reload_s": 0.02})
    return made


async def test_a_node_learns_from_the_rows_that_come_and_keeps_those_it_has_where_they_are_wrong(field, start):
    """Its n is theirs in what it says, in what its neighbors weigh it by, and after a restart."""
    nodes = start(field)
    first, file = nodes[0], field.folder / "node0" / "mine.csv"
    await first.until(lambda: first.rounds >= 2)
    assert first.status.samples == COUNT
    write(file, table(MORE))
    await first.until(lambda: first.status.samples == MORE)
    feed = first.application.driver.feed
    assert [event.text for event in feed.events if event.kind == "data-reloaded"] == ["30 to 45 samples"]
    told = nodes[1].application.driver.core.edges[0].exchange.weighing
    await first.until(lambda: told.report.weight == pytest.approx(MORE / 3))

    write(file, table(2 * MORE, broken="7.0,maybe\n"))
    await first.until(lambda: "data-refused" in feed.kinds)
    rounds = first.rounds
    await first.until(lambda: first.rounds >= rounds + 2)
    assert first.status.samples == MORE
    write(file, table(2 * MORE))
    await first.until(lambda: first.status.samples == 2 * MORE)
    await first.until(lambda: "data-refused" not in feed.kinds)
    assert nodes[1].status.samples == COUNT

    await first.break_off()
    (again,) = start(field, 0)
    await again.until(lambda: again.rounds > 2 and again.status.samples == 2 * MORE)  # its first round may be lost
    for node in (again, *nodes[1:]):
        await node.stop()
