from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from idx_files import idx, write_set

from p2pfl.config import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.learn import RoundStart, learner_for, mnist_idx

SHARED = Path(__file__).parents[3] / "shared" / "data"
REAL = Path(os.environ.get("P2PFL_DATA", SHARED)) / "mnist"


@pytest.fixture
def mnist(context):
    def make(folder, training=None, node=0, nodes=1, **options):
        place = context(node=node, nodes=nodes, local={"path": folder})
        return learner_for(mnist_idx(**options), place, training or TrainingConfig())

    return make


@pytest.mark.parametrize("layout", ["MNIST/raw", "raw", "."])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_torchvisions_layout_is_read_plain_or_gzipped(tmp_path, mnist, layout, suffix):
    write_set(tmp_path / layout, "train", suffix=suffix)
    write_set(tmp_path / layout, "t10k", count=7, suffix=suffix)
    learner = mnist(tmp_path)
    assert (learner.samples, len(learner.test_set)) == (20, 7)
    assert tuple(learner.train_set.inputs.shape) == (20, 1, 28, 28)
    assert float(learner.train_set.inputs.max()) == 1.0


def test_a_folder_of_the_nodes_own_is_all_its_own_and_a_common_one_is_shared_out(tmp_path, context, mnist):
    write_set(tmp_path, "train")
    assert mnist(tmp_path, node=1, nodes=4).samples == 20
    common = [context(node=node, nodes=4, base_dir=tmp_path.parent, options={"path": tmp_path.name}) for node in (0, 1)]
    shares = [learner_for(mnist_idx(path=tmp_path.name), place, TrainingConfig()) for place in common]
    assert [share.samples for share in shares] == [5, 5]
    assert shares[0].evaluate(shares[0].initial(), "test") is None


def test_the_model_trains(tmp_path, mnist):
    write_set(tmp_path, "train")
    learner = mnist(tmp_path, training=TrainingConfig(local_steps=1, batch_size=4))
    assert learner.size == 784 * 128 + 128 + 1290
    assert np.isfinite(learner.train(RoundStart(learner.initial()), 0).vector).all()


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("train-images-idx3-ubyte", None, "there is no train-images-idx3-ubyte"),
        ("train-labels-idx1-ubyte", None, "there is no train-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte", idx(np.zeros((20, 28, 28)), magic=2049), r"found 2049\); allowed: 2051"),
        ("train-labels-idx1-ubyte", b"", "this is not an IDX file of this kind"),
        ("train-labels-idx1-ubyte", idx(np.zeros(20))[:-1], r"the length does not match the header \(found 19\)"),
        ("train-labels-idx1-ubyte", idx(np.zeros(21)), r"the numbers of labels and images differ \(found 21\)"),
        ("train-labels-idx1-ubyte", idx(np.full(20, 10)), r"labels are wrong \(found 10\); allowed: 0 to 9"),
        ("train-images-idx3-ubyte", idx(np.zeros((20, 8, 8))), "the images have a different size .*28 x 28"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, mnist, file, content, text):
    write_set(tmp_path, "train")
    path = tmp_path / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=text) as caught:
        mnist(tmp_path)
    assert file in str(caught.value)


def test_a_damaged_gzip_file_is_named(tmp_path, mnist):
    write_set(tmp_path, "train", suffix=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read") as caught:
        mnist(tmp_path)
    assert caught.value.file == str(path)


@pytest.mark.long
@pytest.mark.skipif(not REAL.is_dir(), reason=f"MNIST is not in {REAL}; name its parent in P2PFL_DATA")
def test_real_mnist_is_learned_well_from_960_images(mnist):
    learner = mnist(REAL, nodes=8, partition="iid", training=TrainingConfig(local_steps=60, learning_rate=0.1))
    assert (learner.samples, len(learner.test_set)) == (7500, 10000)
    outcome = learner.train(RoundStart(learner.initial()), 0)
    assert learner.evaluate(outcome.vector, "test").accuracy > 0.7
