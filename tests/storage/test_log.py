"""The write-ahead log: whole records or none, a torn tail in silence, damage loudly."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2pfl.storage.disk import FAST, PLAIN, Wal, read_log

PREVIOUS = bytes(32)
HEAD_BYTES = 64


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log-00000001"


def written(path, count=4, form=PLAIN) -> list[int]:
    """A log of `count` records; returns where each begins and where the last ends."""
    wal = Wal.create(path, PREVIOUS, form)
    borders = [wal.size_bytes]
    for number in range(count):
        wal.append("mix", {"n": number, "who": b"\x01\x02"}, [b"a" * number, memoryview(b"xyz")])
        borders.append(wal.size_bytes)
    wal.flush()
    wal.close()
    return borders


def numbers(log) -> list[int]:
    return [record.header["n"] for record in log.records]


def test_records_come_back_in_order_with_their_blobs(path):
    borders = written(path)
    log = read_log(path)
    assert numbers(log) == [0, 1, 2, 3]
    assert (log.records[2].kind, log.records[2].header) == ("mix", {"n": 2, "who": b"\x01\x02"})
    assert log.records[2].blobs == [b"aa", b"xyz"]
    assert (log.previous, log.valid_bytes) == (PREVIOUS, borders[-1])
    assert not log.damaged


def test_nothing_reaches_the_file_before_a_flush_and_all_of_it_after(path):
    wal = Wal.create(path, PREVIOUS)
    wal.append("mix", {"n": 1}, [])
    assert read_log(path).records == []
    wal.flush()
    assert (path.stat().st_size, read_log(path).end) == (wal.size_bytes, wal.end)
    wal.close()


def test_a_flush_of_nothing_new_does_not_touch_the_disk(path, monkeypatch):
    wal = Wal.create(path, PREVIOUS)
    wal.append("mix", {}, [])
    wal.flush()
    monkeypatch.setattr("os.fdatasync", pytest.fail)
    wal.flush()
    wal.close()


def test_cut_off_at_any_byte_the_whole_records_before_remain_in_silence(path):
    borders = written(path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        log = read_log(path)
        assert numbers(log) == [n for n in range(4) if borders[n + 1] <= size]
        assert log.valid_bytes <= size
        assert not log.damaged


def test_zeros_in_place_of_a_tail_are_no_damage(path):
    borders = written(path)
    whole = path.read_bytes()
    for size in range(HEAD_BYTES, len(whole)):
        path.write_bytes(whole[:size] + bytes(len(whole) - size))
        log = read_log(path)
        assert numbers(log)[: sum(border <= size for border in borders) - 1] == numbers(log)
        assert not log.damaged


@pytest.mark.parametrize("form", [PLAIN, FAST], ids=["plain", "fast"])
def test_a_changed_byte_ends_the_log_there_and_is_reported_if_data_follow(path, form):
    borders = written(path, form=form)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        log = read_log(path)
        record = sum(border <= position for border in borders) - 1
        assert numbers(log) == list(range(max(0, record)))
        assert log.damaged or record == 3
        assert (log.previous is None) == (position < HEAD_BYTES)


def test_records_left_over_from_another_log_at_the_same_place_are_not_taken(path, tmp_path):
    borders = written(tmp_path / "old")
    written(path)
    stale = (tmp_path / "old").read_bytes()
    for border in borders:
        path.write_bytes(path.read_bytes()[:border] + stale[border:])
        assert numbers(read_log(path)) == list(range(borders.index(border)))
        written_again = tmp_path / f"again{border}"
        written(written_again)
        path.write_bytes(written_again.read_bytes())


@pytest.mark.parametrize("form", [PLAIN, FAST], ids=["plain", "fast"])
def test_a_resumed_log_goes_on_after_its_last_whole_record(path, form):
    borders = written(path, form=form)
    with path.open("r+b") as file:
        file.truncate(borders[3] + 10)
    wal = Wal.resume(path, read_log(path))
    wal.append("mix", {"n": 9}, [])
    wal.flush()
    wal.close()
    log = read_log(path)
    assert numbers(log) == [0, 1, 2, 9]
    assert (log.valid_bytes, log.end) == (path.stat().st_size, wal.end)


def test_the_caller_may_reuse_its_memory_at_once(path):
    wal = Wal.create(path, PREVIOUS)
    memory = bytearray(b"before")
    wal.append("mix", {}, [memory])
    memory[:] = b"after!"
    wal.flush()
    wal.close()
    assert read_log(path).records[0].blobs == [b"before"]


def test_a_header_that_cannot_be_encoded_leaves_the_log_as_it_was(path):
    wal = Wal.create(path, PREVIOUS)
    with pytest.raises(TypeError):
        wal.append("mix", {"what": object()}, [])
    wal.append("mix", {"n": 1}, [])
    wal.flush()
    wal.close()
    assert numbers(read_log(path)) == [1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300), kept=st.integers(0, 400))
def test_any_bytes_after_a_prefix_are_read_without_an_exception(path, content, kept):
    path.unlink(missing_ok=True)
    borders = written(path)
    path.write_bytes(path.read_bytes()[:kept] + content)
    log = read_log(path)
    assert numbers(log) == list(range(len(log.records)))
    assert len(log.records) >= sum(border <= kept for border in borders) - 1


def test_a_large_blob_is_written_without_a_copy_in_memory(path):
    """A copy of megabytes would hold up every thread of the process."""
    blob, wal = bytes(range(256)) * (32 << 10), Wal.create(path, PREVIOUS)
    tracemalloc.start()
    for number in range(3):
        wal.append("mix", {"n": number}, [b"small", blob, b"small"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    wal.flush()
    wal.close()
    assert peak < len(blob) / 4
    log = read_log(path)
    assert [record.blobs for record in log.records] == [[b"small", blob, b"small"]] * 3
    assert log.valid_bytes == path.stat().st_size
