"""The compiled loops: the same bits as numpy's, and numpy's where they are not."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from p2pfl.aggregate import (
    NNM,
    Average,
    Bulyan,
    ClippedSum,
    GeometricMedian,
    Hampel,
    Median,
    MoNNA,
    MultiKrum,
    Neighborhood,
    TrimmedMean,
    centered,
    columns,
    distances,
    make_rule,
)
from p2pfl.aggregate import build as building
from p2pfl.aggregate import kernels as loading
from p2pfl.aggregate.kernels import Kernels, several_threads
from p2pfl.errors import UserError

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
COORDINATES = (
    TrimmedMean(2),
    Median(),
    Hampel(2),
    NNM(2).before(TrimmedMean(2)),
    Bulyan(1),
    Average(),
    GeometricMedian(),
    ClippedSum(2),
    MoNNA(2),
)


@pytest.fixture(scope="module", params=["quick", pytest.param("shipped", marks=pytest.mark.long)])
def built(request, tmp_path_factory):
    """Compiled without the time that the compiler's optimizer takes, and as it is shipped."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "quick":
            patch.setattr(building, "FLAGS", [flag.replace("-O3", "-O1") for flag in building.FLAGS])
            patch.setattr(building, "CLONES", building.CLONES[1:])
        return building.build(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def compiled(built, monkeypatch):
    use(monkeypatch, Kernels(built))


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    use(monkeypatch, None)


def use(monkeypatch, kernels):
    for module in (centered, columns, distances):
        monkeypatch.setattr(module, "kernels", lambda: kernels)


def drawn(count, size, dtype):
    """Some values are equal, some of them zeros of either sign."""
    chance = np.random.default_rng(size)
    vectors = chance.standard_normal((count, size)) * 10.0 ** chance.integers(-3, 4, (count, 1))
    vectors[1] = vectors[0]
    vectors[:, ::7] = np.round(vectors[:, ::7])
    return vectors.astype(dtype)


@needs_compiler
@pytest.mark.parametrize("rule", COORDINATES, ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [11, 12])
def test_what_is_done_to_each_coordinate_is_the_same_bits(rule, dtype, count, built, monkeypatch):
    """With the same distances: sums over coordinates are in another order."""
    known = {}
    for name in ("_gram", "squared_to"):
        exact = getattr(distances, name)

        def measured(*given, exact=exact, name=name):
            return known.setdefault(name, exact(*given)).copy()

        for module in (centered, distances):
            monkeypatch.setattr(module, name, measured, raising=False)
    for size in (1, 700, columns.BLOCK + 5):
        known.clear()
        vectors = drawn(count, size, dtype)
        use(monkeypatch, None)
        wanted = rule(vectors)
        use(monkeypatch, Kernels(built))
        assert rule(vectors).tobytes() == wanted.tobytes()


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_distances_are_those_of_numpy_to_a_float64s_rounding(dtype, count, built):
    kernels = Kernels(built)
    for size in (0, 1, 127, 128, 129, loading.CHUNK + 3):
        rows = list(drawn(max(2, count), size, dtype)[:count])
        np.testing.assert_allclose(
            kernels.inner_products(rows, rows[0]), distances._gram(rows, rows[0]), rtol=1e-12, atol=1e-12
        )
        np.testing.assert_allclose(kernels.squares(rows, rows[0]), distances.squared_to(rows[0], rows), rtol=1e-12)


@needs_compiler
@pytest.mark.parametrize("rule", [MultiKrum(2), MoNNA(2), ClippedSum(2), Hampel(2), TrimmedMean(2)], ids=repr)
def test_several_threads_give_the_same_bits(rule, compiled, monkeypatch):
    monkeypatch.setattr(loading, "LEAST", 0)
    vectors = drawn(9, 2 * loading.CHUNK + 1, np.float32)
    wanted = rule(vectors)
    with several_threads(3):
        assert rule(vectors).tobytes() == wanted.tobytes()


@needs_compiler
def test_a_nodes_rule_uses_its_threads(compiled, monkeypatch):
    monkeypatch.setattr(loading, "LEAST", 0)
    used = []
    monkeypatch.setattr(loading, "ThreadPoolExecutor", lambda count: used.append(count) or ThreadPoolExecutor(count))
    rows = list(drawn(7, 2 * loading.CHUNK, np.float32))
    around = Neighborhood(own=rows[0], others=rows[1:], weights=np.full(6, 1 / 7), peers=tuple(range(6)))
    one, two = (make_rule("hampel:b=1", threads=threads).mix(around).model for threads in (1, 2))
    assert set(used) == {2}
    assert one.tobytes() == two.tobytes()


@needs_compiler
def test_what_overflows_or_is_not_contiguous_is_left_to_numpy(built, monkeypatch):
    most = np.finfo(np.float32).max
    rows = np.array([[most] * 3, [-most] * 3, [most, most, 1.0], [0.0] * 3, [-most / 2] * 3, [1.0] * 3], np.float32)
    for rule in (TrimmedMean(1), Hampel(1), Average(), ClippedSum(1), NNM(1).before(TrimmedMean(1))):
        use(monkeypatch, None)
        wanted = rule(rows)
        use(monkeypatch, Kernels(built))
        assert rule(rows).tobytes() == wanted.tobytes()
        assert rule(np.asfortranarray(rows)).tobytes() == wanted.tobytes()
    assert Kernels(built).inner_products(list(np.ones((2, 3), np.float16)), np.ones(3, np.float16)) is None


@needs_compiler
def test_a_library_of_another_version_is_named_and_not_used(built, tmp_path, monkeypatch, caplog):
    source = tmp_path / "kernels.c"
    source.write_text("int other;")
    monkeypatch.setattr(loading, "SOURCE", source)
    loading.kernels.cache_clear()
    assert loading.kernels() is None
    assert not caplog.records
    built_before = shutil.copy(built, tmp_path)
    loading.kernels.cache_clear()
    with caplog.at_level(logging.WARNING, "p2pfl"):
        assert loading.kernels() is None
        assert loading.kernels() is None
    (told,) = caplog.messages
    assert f"{built.name} is of another version; python -m p2pfl.aggregate.build" in told
    shutil.move(built_before, loading.library())
    loading.library().write_bytes(b"not a library")
    loading.kernels.cache_clear()
    assert loading.kernels() is None
    assert "robust rules run in numpy" in caplog.messages[1]
    loading.kernels.cache_clear()


def test_without_a_compiler_one_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(UserError, match=r"no C compiler \(found .no-such-compiler"):
        building.build(tmp_path)
    monkeypatch.setenv("CC", "false")
    with pytest.raises(UserError, match="the compiler failed"):
        building.build(tmp_path)
    monkeypatch.delenv("CC")
    with pytest.raises(UserError, match="cannot write"):
        building.build(tmp_path / "none")


@needs_compiler
def test_rows_of_unequal_sizes_are_left_to_numpy_which_refuses_them(compiled):
    rows = [np.ones(8, np.float32), np.ones(3, np.float32)]
    for work in (
        lambda: distances.combined(rows, [0.5, 0.5]),
        lambda: distances.moved(rows[0], rows[1:], [0.5]),
        lambda: distances.squared_to(rows[0], rows),
        lambda: columns.trimmed_mean(columns.PlainRows(rows), 0, 0),
    ):
        with pytest.raises(ValueError, match="broadcast"):
            work()
