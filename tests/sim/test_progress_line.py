"""A program that runs or simulates a federation shows a line of progress on a terminal, and a bar in a notebook."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from p2pfl import Federation
from p2pfl.config import TaskConfig
from p2pfl.console import ProgressView
from p2pfl.reporting import Point, Statistic
from sim import describe, simulate


class Stream(io.StringIO):
    def __init__(self, *, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def stderr(monkeypatch):
    """Make stderr a terminal, or a pipe, and return it."""

    def stderr(*, is_terminal):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "stderr", Stream(is_terminal=is_terminal))
        return sys.stderr

    return stderr


@pytest.fixture
def run(monkeypatch):
    """Run a federation whose nodes get no further than one look at them."""
    at_four = Point(time_s=2.0, rounds=Statistic(mean=4.0, min=4.0, max=4.0))

    def look(federation, on_progress, **wishes):
        sys.stdout.write("printed by the program\n")
        on_progress(at_four)

    monkeypatch.setattr("p2pfl.fleet.one_process.run_together", look)
    return Federation(nodes=2, rounds=9).run


def test_nodes_in_this_process_show_how_far_they_are_in_one_line_that_goes(run, stderr, capsys):
    terminal = stderr(is_terminal=True)
    run()
    assert "2.0 s, round 4" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[K")  # erased
    assert capsys.readouterr().out == "printed by the program\n"  # to a file or a pipe, as without a line


def test_neither_a_pipe_nor_a_program_that_looks_itself_gets_a_line(run, stderr):
    pipe = stderr(is_terminal=False)
    run()
    assert pipe.getvalue() == ""
    terminal, seen = stderr(is_terminal=True), []
    run(on_progress=seen.append)
    assert terminal.getvalue() == ""
    assert len(seen) == 1


def small():
    federation = describe(nodes=3, rounds=3, topology="ring", compressor="q8", seed=1)
    training = replace(federation.training, local_steps=1, closing_rounds=0)
    return replace(federation, task=TaskConfig(name="quadratic", options={}), training=training)


def test_a_simulation_shows_the_same_line_and_is_the_same_run(stderr):
    pipe = stderr(is_terminal=False)
    digest = simulate(small(), references=False).digest
    assert pipe.getvalue() == ""
    terminal = stderr(is_terminal=True)
    assert simulate(small(), references=False).digest == digest
    assert "of 9 rounds" in terminal.getvalue()


@pytest.fixture
def shown(monkeypatch):
    """Run in a kernel, and return what its cell has shown, one after the other."""
    cell = []

    def display(bundle, *, raw, display_id):
        assert (cell, raw, display_id) == ([], True, True)
        cell.append(bundle["text/html"])
        return SimpleNamespace(update=update)

    def update(bundle, *, raw):
        assert raw
        cell.append(bundle["text/html"])

    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr("p2pfl.console.output.BAR_EVERY_S", 0.0)
    return cell


def test_in_a_notebook_both_show_a_bar_that_goes(run, shown, capsys):
    run()
    assert [re.findall(r'value="([^"]+)"', html) for html in shown] == [[], ["0.444"], []]
    assert "2.0 s, round 4" in shown[1]
    assert shown[-1] == ""
    shown.clear()
    simulate(small(), references=False)
    parts = [float(value) for html in shown for value in re.findall(r'value="([^"]+)"', html)]
    assert parts == sorted(parts)
    assert 0.0 < parts[-2] <= parts[-1] == 1.0
    assert capsys.readouterr().err == ""
    shown.clear()
    run(on_progress=lambda _: None)
    assert shown == []


def test_words_in_a_bar_are_no_html(shown):
    with ProgressView() as view:
        view.show("a <b>", part=2.0)
    assert 'value="1.000"></progress> a &lt;b&gt;' in shown[1]
