"""Vectors of edges in a mapped file: the same bits, no name on the disk, and one clear error where there is no room."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from p2pfl.core.events import ChangeEdges, ResetEdge
from p2pfl.engine.arithmetic import memory_plan
from p2pfl.engine.state import MappedVectors
from p2pfl.errors import StorageError

sys.path.insert(0, str(Path(__file__).parent))
from pair import Pair, picture


def is_mapped(vector):
    while isinstance(vector, np.ndarray):
        vector = vector.base
    return isinstance(vector, mmap.mmap)


def vectors(state):
    return [vector for edge in state.edges.values() for vector in (edge.own, edge.peer, *edge.kept.values())]


def played(spec, folder=None):
    """A pair through everything that makes, moves or zeroes a vector of an edge; one end maps them, from its start or
    from a middle.
    """
    pair = Pair(spec=spec, beta=0.1, size=5000)
    state = pair.engines[0].state
    pictures = []
    for step in range(4):
        if folder is not None and step == 1:
            state.move_to(MappedVectors(folder, state.channels, 3))
        for index in (0, 1):
            pair.train(index, pair.engines[index].state.model * np.float32(0.9))
        pair.exchange()
        if step == 2:
            for index in (0, 1):
                pair.run(index, ResetEdge(peer=1 - index, incarnation=0))
            pair.run(0, ChangeEdges(added=(2, 3), dropped=()))
            pair.run(0, ChangeEdges(added=(4,), dropped=(2,)))
            pair.seq = 0
        pictures += [picture(engine.state) for engine in pair.engines]
    return pair, pictures


@pytest.mark.parametrize("spec", ["q4", "fragment:3"])
def test_where_vectors_are_changes_no_bit(spec, tmp_path):
    pair, mapped = played(spec, tmp_path)
    assert mapped == played(spec)[1]
    state = pair.engines[0].state
    assert vectors(state)
    assert all(is_mapped(vector) for vector in vectors(state) if vector.size)
    assert list(tmp_path.iterdir()) == [], "a process that is killed leaves no file"


def test_the_place_of_an_edge_that_is_gone_is_given_to_the_next_as_zeros(tmp_path):
    like = np.ones(3000, np.float32)
    mapped = MappedVectors(tmp_path, like, 1)
    first = mapped.moved(1, "own", like)
    assert first.all()
    before = mapped.nbytes
    mapped.forget(1)
    second = mapped.zeros(2, "own")
    assert mapped.nbytes == before >= like.nbytes
    assert not second.any()
    third = mapped.zeros(3, "own")
    third[:] = 1
    assert not second.any()
    assert mapped.nbytes > before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not say how many files are open")
def test_many_vectors_take_no_more_open_files_than_one(tmp_path):
    def opened(count):
        before = len([*Path("/proc/self/fd").iterdir()])
        mapped = MappedVectors(tmp_path, np.zeros(30, np.float32), count)
        vectors = [mapped.zeros(peer, "own") for peer in range(count)]
        for number, vector in enumerate(vectors):
            vector[:] = number
        assert [vector[-1] for vector in vectors] == [*range(count)]
        return len([*Path("/proc/self/fd").iterdir()]) - before

    assert opened(40) == opened(1)


@pytest.mark.parametrize("code", [errno.ENODEV, errno.EMFILE])
def test_a_disk_whose_files_cannot_be_mapped_is_the_same_error(code, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(StorageError, match=r"cannot write or map .*vectors\.mapped: "):
        MappedVectors(tmp_path, np.zeros(3000, np.float32), 5)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system allocates no blocks ahead")
def test_a_full_disk_is_one_error_before_anything_is_mapped(tmp_path, monkeypatch):
    def refuse(fd, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StorageError, match=r"cannot write or map .*vectors\.mapped: No space left on device"):
        MappedVectors(tmp_path, np.zeros(3000, np.float32), 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("full_at", [1, 2])
def test_a_disk_that_is_full_later_takes_memory_and_no_exchange_is_half_done(full_at, tmp_path, monkeypatch, caplog):
    """An edge is added, and a flow begins, while an exchange is under way."""
    reserve = MappedVectors._reserve

    def full(self, count):
        if self.nbytes and count > full_at * 3:
            raise self._refused(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        reserve(self, count)

    monkeypatch.setattr(MappedVectors, "_reserve", full)
    pair, pictures = played("q4", tmp_path)
    assert pictures == played("q4")[1]
    assert {is_mapped(vector) for vector in vectors(pair.engines[0].state)} == {True, False}
    assert "No space left on device; a vector of an edge is in memory instead" in caplog.text


def test_the_plan_counts_mapped_vectors_apart(tmp_path):
    engine = played("q4", tmp_path)[0].engines[0]
    plan, resident = (
        memory_plan(engine.state, engine.codecs, engine.method, mapped=mapped) for mapped in (True, False)
    )
    assert plan.mapped == resident.replicas + resident.flows == 9 * engine.state.channels.nbytes
    assert (plan.replicas, plan.flows) == (0, 0)
    assert plan.total == resident.total - plan.mapped
