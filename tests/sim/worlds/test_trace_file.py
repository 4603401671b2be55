"""The file of speeds over time: what it says, and how each fault in it is refused."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pfl.errors import UserError
from sim.worlds import timeline
from sim.worlds.timeline import node_speeds, read_trace
from sim.worlds.world import read_world

S = 1_000_000_000
NAMES = ["pi1", "pi2"]


def test_rows_of_nodes_by_name_or_index_in_any_order_of_columns(write):
    text = "speed,comment,node,time_s\n1,fast,pi1,0\n0.5,,1,0\n\n0.25,hot,pi1,1.5\n2,,0,3\n"
    assert read_trace(write(text), NAMES) == [[(0, 1.0), (3 * S // 2, 0.25), (3 * S, 2.0)], [(0, 0.5)]]


def test_a_file_from_a_spreadsheet_is_read(write):
    text = '\ufeffnode,time_s,speed\r\n"pi1", 0 ,1\r\npi2,0,"0.5"\r\n'
    assert read_trace(write(text), NAMES) == [[(0, 1.0)], [(0, 0.5)]]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no column node"),
        ("node,time_s,speed\n", "has no row for pi1, pi2"),
        ("node,time,speed\npi1,0,1\n", "has no column time_s"),
        ("node,time_s,speed\npi1,0,1\n", "has no row for pi2"),
        ("node,time_s,speed\npi3,0,1\n", "world.csv:2: node: no such node (found 'pi3')"),
        ("node,time_s,speed\n0-1,0,1\n", "no such node (found '0-1')"),
        ("node,time_s,speed\npi1,zero,1\n", "world.csv:2: time_s: impossible value (found 'zero')"),
        ("node,time_s,speed\npi1,-1,1\n", "found '-1'"),
        ("node,time_s,speed\npi1,inf,1\n", "found 'inf'"),
        ("node,time_s,speed\npi1,0,fast\n", "speed: impossible value (found 'fast')"),
        ("node,time_s,speed\npi1,0,0\n", "speed: impossible value (found '0')"),
        ("node,time_s,speed\npi1,0,nan\n", "found 'nan'"),
        ("node,time_s,speed\npi1,0\n", "has 2 fields"),
        ("node,time_s,speed\npi1,1,1\n", "first row is later than 0"),
        ("node,time_s,speed\npi1,0,1\npi1,2,1\npi2,0,1\npi1,1,1\n", "world.csv:5: time_s: is not later"),
        ("node,time_s,speed\npi1,0,1\npi1,0,2\n", "is not later"),
        (b"node,time_s,speed\n\xff\xfe,0,1\n", "is not UTF-8"),
        ('node,time_s,speed\n"pi1,0,1\n', "not CSV"),
        ("node,time_s,speed\n" + "9" * 200_000 + ",0,1\n", "not CSV"),
    ],
)
def test_a_malformed_trace_is_refused(write, content, says):
    with pytest.raises(UserError) as caught:
        read_trace(write(content, "world.csv"), NAMES)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 600


def test_what_is_no_file_or_too_large_is_refused(tmp_path, write, monkeypatch):
    path = write("node,time_s,speed\npi1,0,1\npi2,0,1\n", "speeds.csv")
    os.mkfifo(tmp_path / "pipe")
    for place, says in (
        (tmp_path, "cannot be read"),
        (tmp_path / "pipe", "is a pipe"),
        (tmp_path / "x", "cannot be read"),
    ):
        with pytest.raises(UserError, match=says):
            read_trace(place, NAMES)
    monkeypatch.setattr(timeline, "LARGEST_BYTES", 10)
    with pytest.raises(UserError, match="too large"):
        read_trace(path, NAMES)


def test_a_trace_is_found_beside_the_world_file_and_gives_the_speeds(write, federation):
    rows = "".join(f"{node},0,{node + 1}\n" for node in range(10))
    write("node,time_s,speed\n" + rows + "node0,10,5\n", "speeds.csv")
    world = read_world(write('[compute]\ntrace = "speeds.csv"\n'), federation)
    speeds = node_speeds(world, federation)
    assert [speed.speed(0) for speed in speeds] == [float(node + 1) for node in range(10)]
    assert speeds[0].speed(10 * S) == 5.0


def test_a_malformed_trace_refuses_the_world(write, federation):
    write("node,time_s,speed\n", "speeds.csv")
    with pytest.raises(UserError, match=r"has no row for node0.* and 5 more"):
        read_world(write('[compute]\ntrace = "speeds.csv"\n'), federation)


@given(text=st.text(alphabet='node,time_s,speed\npi120."\r\0é', max_size=60), header=st.booleans())
def test_any_text_is_a_trace_or_the_users_mistake(tmp_path_factory, text, header):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_text("node,time_s,speed\n" * header + text, encoding="utf-8")
    try:
        found = read_trace(path, NAMES)
    except UserError:
        return
    assert all(steps and steps[0][0] == 0 for steps in found)
