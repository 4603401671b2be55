"""A method is made from its spec, and each does to a round what its paper says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from p2pfl.config import TrainingConfig
from p2pfl.errors import UserError
from p2pfl.federation import Federation
from p2pfl.learn import RoundStart, _corrected, method_of
from p2pfl.methods import ROBUST, Method, Round, from_here, make_method

TEN_LINES = '''\
"""FedProx (arXiv 1812.06127): each step is also drawn back to the model that its round began with."""

from p2pfl import Method


class prox(Method):
    def __init__(self, mu=0.01):
        self.mu = mu

    def gradient(self, g, w, start):
        return g + self.mu * (w - start["anchor"])
'''
FIGURES = ("steps", "learning_rate", "samples", "rho")
BUILT_IN = {
    "plain": "plain",
    "variate": "variate:beta=0.1",
    "variate:beta=0.3": "variate:beta=0.3",
    "prox": "prox:mu=0.01",
    "normalized:steps=7": "normalized:steps=7.0",
    "tracking": "tracking:gain=0.5",
    "momentum:mu=0.5": "momentum:mu=0.5",
    "outer": "outer:momentum=0.5,rate=0.7",
    "fair:q=2": "fair:q=2.0",
}
BY_ROWS = tuple(BUILT_IN)[:5]
"""Those of which the simulator computes many nodes at once."""


@pytest.mark.parametrize(("spec", "canonical"), [*BUILT_IN.items(), ("fair", "fair:q=1.0")])
def test_a_spec_has_one_canonical_spelling(spec, canonical):
    made = make_method(spec, TrainingConfig())
    assert made.spec == canonical
    assert made.code == canonical.partition(":")[0]
    assert make_method(canonical, TrainingConfig()).spec == canonical


def test_the_path_of_a_file_alone_is_made_that_from_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert from_here("prox.py:prox,mu=0.5") == f"{tmp_path}/prox.py:prox,mu=0.5"
    for spec in ("tracking:gain=0.5", "package.module:prox"):
        assert from_here(spec) == spec


def test_a_file_of_ten_lines_is_a_method(tmp_path):
    (tmp_path / "prox.py").write_text(TEN_LINES)
    made = make_method("prox.py:prox,mu=0.5", TrainingConfig(), folder=tmp_path)
    g, w, anchor = np.ones(3), np.full(3, 4.0), np.full(3, 2.0)
    np.testing.assert_array_equal(made.gradient(g, w, {"anchor": anchor}), np.full(3, 2.0))
    assert made.spec == "prox.py:prox,mu=0.5"
    assert made.code.startswith("prox.py:prox@")


def test_other_code_is_another_method(tmp_path):
    """What one has kept must not be taken for what the other keeps."""
    file = tmp_path / "prox.py"
    file.write_text(TEN_LINES)
    before = make_method("prox.py:prox", TrainingConfig(), folder=tmp_path).code
    assert make_method("prox.py:prox,mu=3", TrainingConfig(), folder=tmp_path).code == before
    file.write_text(TEN_LINES.replace("self.mu *", "self.mu * 2 *"))
    assert make_method("prox.py:prox", TrainingConfig(), folder=tmp_path).code != before


def test_another_layout_is_another_method(tmp_path):
    text = "    def __init__(self, k=1):\n        self.kept = ('a', 'b')[: int(k)]\n"
    (tmp_path / "m.py").write_text(f"from p2pfl import Method\n\n\nclass m(Method):\n{text}")
    one, two = (make_method(f"m.py:m,k={k}", TrainingConfig(), folder=tmp_path).code for k in (1, 2))
    assert one != two


WRONG = {
    "unknown": ("proxy", "did you mean prox"),
    "another's name": ("fednova", "did you mean normalized"),
    "another's name, with signs": ("K-GT", "did you mean tracking"),
    "a parameter out of its range": ("momentum:mu=1", "below 1"),
    "no such parameter": ("prox:nu=1", "mu"),
    "not a number": ("prox:mu=much", "a number from 0"),
    "twice": ("prox:mu=1,mu=2", "twice"),
    "no file": ("nowhere.py:prox", "there is no file"),
    "no class": ("mine.py:absent", "has no 'absent'"),
    "no method": ("mine.py:number", "is not a method"),
    "another parameter": ("mine.py:prox,nu=1", "nu"),
    "a first channel that is no model": ("mine.py:headless", "the first channel"),
    "a name that replicas have": ("mine.py:colliding", "reserved name"),
    "a text in place of a tuple": ("mine.py:comma", "not a tuple of names"),
    "terms that are no tuple": ("mine.py:bare", "not a tuple of numbers"),
    "a profile that there is not": ("mine.py:brave", "not a set of profiles"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_spec_is_told_by_its_key(case, tmp_path):
    spec, text = WRONG[case]
    more = 'number = 3\n\n\nclass headless(Method):\n    channels = ("tracker",)\n'
    more += 'class colliding(Method):\n    kept_edges = ("own",)\n'
    more += 'class comma(Method):\n    kept = ("last")\n'
    more += "class bare(Method):\n    no_terms = (0.5)\n"
    more += 'class brave(Method):\n    profiles = frozenset({"brave"})\n'
    (tmp_path / "mine.py").write_text(TEN_LINES + more)
    with pytest.raises(UserError, match=text) as caught:
        make_method(spec, TrainingConfig(), folder=tmp_path)
    assert caught.value.key == "training.method"


def test_a_variate_believes_no_drift_below_half_of_what_one_step_makes():
    made = make_method("variate", TrainingConfig(learning_rate=0.1, speed_correction=2.0))
    assert [made.valid((drift,)) for drift in (0.0, 0.02, 0.03)] == [True, False, True]
    assert not made.moves(made.no_terms), "before a node has trained"


def test_a_variate_is_refused_under_a_robust_rule_with_the_reason():
    with pytest.raises(UserError, match="exchanges that move models"):
        make_method("variate", TrainingConfig(), profile=ROBUST)
    assert make_method("prox", TrainingConfig(), profile=ROBUST).spec == "prox:mu=0.01"


@pytest.mark.parametrize(("spec", "why"), [("tracking", "exchanges that move models"), ("fair", "a liar could claim")])
def test_what_a_robust_rule_cannot_carry_is_refused_with_the_reason_and_what_to_use(spec, why):
    with pytest.raises(UserError, match=why) as caught:
        make_method(spec, TrainingConfig(), profile=ROBUST)
    assert "momentum, normalized, outer" in str(caught.value)
    assert all(make_method(other, TrainingConfig(), profile=ROBUST) for other in ("momentum", "outer"))


def test_with_privacy_a_method_that_looks_at_the_loss_is_refused_with_those_that_do_not(tmp_path):
    text = "from p2pfl import Method\n\n\nclass Own(Method):\n    needs_loss = True\n"
    (tmp_path / "own.py").write_text(text, encoding="utf-8")
    private = {"nodes": 2, "topology": "complete", "privacy": {"epsilon": 8.0, "delta": 1e-5}}
    for spec in ("fair", f"{tmp_path}/own.py:Own"):
        with pytest.raises(UserError, match="loss") as caught:
            method_of(Federation(method=spec, **private).config)
        assert caught.value.key == "training.method"
        assert {"tracking", "variate"} < set(caught.value.allowed.replace(";", ",").split(", "))
    assert method_of(Federation(method="tracking", **private).config).spec == "tracking:gain=0.5"


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_tracking_is_refused_where_a_round_does_not_tell_its_gradient(training):
    with pytest.raises(UserError, match="tracking"):
        make_method("tracking", TrainingConfig(**training))


UNNORMALIZED = [{"speed_correction": 2.0}, {"momentum": 0.9}, {"optimizer": "adam"}]


@pytest.mark.parametrize("training", [*UNNORMALIZED, {"local_steps": None, "local_epochs": 1}])
def test_steps_are_normalized_once_and_only_where_they_are_those_of_plain_descent(training):
    with pytest.raises(UserError, match="normalized"):
        make_method("normalized", TrainingConfig(**training))


def test_normalized_says_what_to_write_where_nodes_with_few_rows_train_more_rounds():
    with pytest.raises(UserError, match="Write variate, or plain with speed_correction = 20"):
        make_method("normalized", TrainingConfig(local_steps=None, local_epochs=2))


def test_a_normalized_round_moves_by_the_change_of_a_step_times_the_common_number_of_steps():
    """FedNova, arXiv 2007.07481, eq. 6 with plain SGD: a_i is the number of steps."""
    made = make_method("normalized:steps=10", TrainingConfig())
    about = Round(steps=4, learning_rate=0.1, samples=30, rho=1.0)
    change = made.trained(np.array([2.0, -4.0]), None, about).change["model"]
    np.testing.assert_array_equal(change, [5.0, -10.0])


@pytest.mark.parametrize("spec", BY_ROWS)
def test_rows_get_the_bits_of_each_vector_alone(spec):
    """The simulator computes many nodes at once with the same lines."""
    made = make_method(spec, TrainingConfig())
    rng = np.random.default_rng(0)
    changes = rng.standard_normal((5, 40)).astype(np.float32)
    steps = np.array([1, 3, 4, 20, 33])
    columns = [np.array(each, np.float64)[:, None] for each in (steps, [0.1] * 5, [30] * 5, [0.5, 1, 1, 2, 1.7])]
    together = made.trained(changes, None, Round(**dict(zip(FIGURES, columns, strict=True)))).change["model"]
    assert together.dtype == np.float32
    for row in range(5):
        figures = [float(column[row, 0]) for column in columns]
        alone = made.trained(changes[row], None, Round(**dict(zip(FIGURES, figures, strict=True))))
        assert alone.change["model"].tobytes() == together[row].tobytes()


@pytest.mark.parametrize("spec", BUILT_IN)
def test_both_ends_find_the_same_terms_and_believe_an_agreement(spec):
    made = make_method(spec, TrainingConfig())
    for drift in ([0.0, 0.5], [4.0, 0.5], [0.3, 0.3]):
        ours, theirs = ((each,) * len(made.no_terms) for each in drift)
        agreed = made.agree(ours, theirs)
        assert agreed == made.agree(theirs, ours)
        assert made.agree(ours, agreed) == made.agree(theirs, agreed) == agreed


def test_the_base_is_plain():
    assert Method().trained(np.ones(2), None, Round(steps=1, learning_rate=1.0, samples=1, rho=2.0)).change[
        "model"
    ].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("spec", ["variate", "prox", "tracking", "momentum:mu=0.5"])
def test_a_large_gradient_is_corrected_piece_by_piece_in_its_own_memory_with_the_same_bits(spec, monkeypatch):
    method, size = make_method(spec, TrainingConfig(), profile=None), 1000
    parameter, g, *vectors = torch.randn(5, 4, size // 4, generator=torch.Generator().manual_seed(0)).unbind()
    part = {"anchor": vectors[0], "correction": vectors[1], "momentum": vectors[2]}
    whole = method.gradient(g, parameter, part)
    monkeypatch.setattr("p2pfl.learn.torch_model.PIECE", 48)
    pieces = _corrected(method, g, torch.nn.Parameter(parameter, requires_grad=False), part)
    assert pieces.data_ptr() == g.data_ptr()
    assert torch.equal(pieces, whole)


def test_a_method_made_from_one_of_ours_gets_the_anchor_though_ours_does_not_read_it(learner, tmp_path):
    text = TEN_LINES.replace("import Method", "import Method\nfrom p2pfl.methods import Momentum")
    (tmp_path / "own.py").write_text(text.replace("(Method)", "(Momentum)"))
    method = make_method("own.py:prox,mu=0.5", TrainingConfig(), folder=tmp_path)
    one = learner()
    given = {name: one.initial() * 0 for name in method.given}
    one.train(RoundStart(one.initial(), given, method), 0)
