"""What other programs predict with our trees: XGBoost (skipped where it is not installed)."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from tree_world import grow, schema_of, settings_of

from p2pfl.learn.trees import BinGrid, Forest, as_cells, to_xgboost

SIZE = 500


def cells_of() -> np.ndarray:
    rng = np.random.default_rng(0)
    cells = np.concatenate([rng.integers(-50, 50, size=(3, SIZE)) / 10.0, rng.integers([[3], [5]], size=(2, SIZE))])
    cells[1, ::5] = np.nan
    cells[4, ::7] = np.nan
    return cells


def forest_of(classes: int, rounds: int = 5) -> Forest:
    cells = cells_of()
    score = cells[0] + np.nan_to_num(cells[1], nan=2.0) - 3 * (cells[4] == 2) + (cells[3] == 0)
    targets = np.digitize(score, [0.0, 2.0][: classes - 1]) if classes else score * 3 + 50
    schema = schema_of(3, classes=classes, categories=(3, 5))
    options = settings_of(schema, rounds=rounds, max_depth=4)
    forest = grow(schema, options, [(cells, targets, np.zeros(SIZE, np.bool_))])[0].forest()
    assert {column for trees in forest.rounds for tree in trees for column in tree.columns} >= {0, 1, 4}
    return forest


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_xgboost_predicts_the_same_from_our_json(classes, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    schema, forest = schema_of(3, classes=classes, categories=(3, 5)), forest_of(classes)
    path = tmp_path / "model.json"
    path.write_text(to_xgboost(forest, schema))
    model = xgboost.Booster(model_file=path)
    names = [*schema.numeric, *schema.categories]
    table = xgboost.DMatrix(cells_of().T, feature_names=names, feature_types=["float"] * 3 + ["c"] * 2)
    margins = model.predict(table, output_margin=True).reshape(SIZE, -1)
    assert margins == pytest.approx(forest.margins(as_cells(cells_of())).T, abs=2e-5)
    outputs = model.predict(table)
    if classes:
        logits = forest.outputs(as_cells(cells_of()))
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        found = powers / powers.sum(axis=1, keepdims=True)
        assert outputs == pytest.approx(found if classes > 2 else found[:, 1], abs=1e-6)
    again = tmp_path / "again.json"
    model.save_model(again)
    trees = json.loads(again.read_text())["learner"]["gradient_booster"]["model"]["trees"]
    ours = json.loads(path.read_text())["learner"]["gradient_booster"]["model"]["trees"]
    for theirs, own in zip(trees, ours, strict=True):
        for key in ("split_indices", "left_children", "right_children", "default_left", "categories", "parents"):
            assert theirs[key] == own[key]


@pytest.mark.parametrize(("classes", "objective"), [(0, "reg:squarederror"), (2, "binary:logistic")])
def test_xgboost_grows_the_same_trees_from_our_bins(classes, objective):
    """It is given bins instead of numbers, so that it has no choice of cuts, and our base."""
    xgboost = pytest.importorskip("xgboost")
    rng = np.random.default_rng(3)
    cells = rng.normal(size=(4, 2000))
    score = cells[0] + cells[1] * cells[2] + rng.normal(size=2000)
    cells[3, ::3] = np.nan
    targets = (score > 0).astype(np.int64) if classes else 10 + 3 * score
    schema = schema_of(4, classes=classes)
    options = settings_of(schema, rounds=8, max_depth=4, least_rows=1, gamma=0.5)
    forest = grow(schema, options, [(cells, targets, np.zeros(2000, np.bool_))])[0].forest()
    codes = forest.grid.codes(as_cells(cells)).astype(np.float64)
    codes[np.isnan(cells)] = np.nan
    base = 1 / (1 + np.exp(-forest.base[0])) if classes else forest.base[0]
    given = {"objective": objective, "max_depth": 4, "gamma": 0.5, "tree_method": "hist", "base_score": float(base)}
    model = xgboost.train(given | {"nthread": 1, "max_bin": 256}, xgboost.DMatrix(codes.T, targets), 8)
    margins = model.predict(xgboost.DMatrix(codes.T), output_margin=True)
    assert margins == pytest.approx(forest.margins(as_cells(cells))[0], abs=2e-4)


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_model_packs_to_bytes_and_back_and_other_bytes_are_refused(classes):
    forest = forest_of(classes)
    packed = forest.pack()
    assert Forest.unpack(packed) == forest
    for wrong in (b"", packed[:-1], packed + b"x", Forest.unpack(packed).grid):
        with pytest.raises(ValueError, match="no model"):
            Forest.unpack(wrong if isinstance(wrong, bytes) else msgspec.msgpack.encode(wrong))
    forest.rounds[0][0].lefts[0] = 0
    with pytest.raises(ValueError, match="contradicts"):
        Forest.unpack(forest.pack())


def test_a_model_without_trees_predicts_its_base(tmp_path):
    forest = Forest(objective="squared", grid=BinGrid(edges=((),), sizes=()), base=(7.5,), scale=1.0, rounds=())
    schema = schema_of(1, classes=0)
    assert forest.outputs(np.zeros((1, 3), np.float32)).tolist() == [[7.5]] * 3
    assert json.loads(to_xgboost(forest, schema))["learner"]["gradient_booster"]["model"]["tree_info"] == [0]
    xgboost = pytest.importorskip("xgboost")
    path = tmp_path / "model.json"
    path.write_text(to_xgboost(forest, schema))
    table = xgboost.DMatrix(np.zeros((3, 1)), feature_names=["x0"])
    assert xgboost.Booster(model_file=path).predict(table).tolist() == [7.5] * 3
