"""`p2pfl.adapt.flower`: a client as Flower's documentation has it is a node's learner, unchanged."""

from __future__ import annotations

import numpy as np
import pytest

flwr = pytest.importorskip("flwr", reason="the extra flower has it, which `dev` does without")

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.client import NumPyClient  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from p2pfl.adapt.flower import task  # noqa: E402
from p2pfl.config import TrainingConfig  # noqa: E402
from p2pfl.errors import LearningError, UserError  # noqa: E402
from p2pfl.learn import (  # noqa: E402
    NodeContext,
    RoundStart,
)
from p2pfl.methods import Variate  # noqa: E402


class Mean(NumPyClient):
    """Moves its weights half of the way to a target, and counts its fits in an array of whole numbers."""

    fits = 0

    def __init__(self, context):
        self.node = context.node_config["partition-id"]
        self.weights = [np.random.normal(size=(2, 3)).astype(np.float32), np.zeros(2), np.array(7)]  # noqa: NPY002

    def get_parameters(self, config):
        return self.weights

    def fit(self, parameters, config):
        self.config = config
        Mean.fits += 1
        a, b, count = parameters
        return [a / 2, (b + self.node + 1) / 2, np.asarray(count + 1)], 10 + self.node, {"train_loss": 0.5, "text": "x"}

    def evaluate(self, parameters, config):
        return float(np.sum(parameters[1])), 20, {"accuracy": 0.25, "count": float(parameters[2])}


def learner(client=Mean, *, node=1, training=None, **how):
    made = client if isinstance(client, ClientApp) else lambda context: client(context).to_client()
    context = NodeContext(node=node, nodes=2, name="n", seed=5, base_dir=None, local={"path": "/x/y"})
    return task(made, **how).learner(context, training or TrainingConfig())


def test_a_numpy_client_is_a_learner_whose_start_all_nodes_share():
    made, other = learner(), learner(node=0)
    np.testing.assert_array_equal(made.initial(), other.initial())
    assert (made.size, made.digest, made.samples) == (8, other.digest, 11)
    start = RoundStart(made.initial() * 0)
    done = made.train(start, 2)
    np.testing.assert_array_equal(done.vector, [0] * 6 + [1, 1])
    assert (done.samples, done.loss, done.steps) == (11, 0.5, 1)
    assert made.client.client.config["server_round"] == 3
    score = made.evaluate(done.vector, "test")
    assert (score.loss, score.accuracy, score.samples, score.metrics) == (2.0, 0.25, 20, {"count": 8.0})
    assert made.stays_in_process, "a simulation must not copy the client"
    assert made.evaluate(done.vector, "local") is None


def test_arrays_of_whole_numbers_stay_on_the_node_and_survive_a_restart():
    made = learner()
    made.train(RoundStart(made.initial() * 0), 0)
    assert made.local_state()["array 2"] == 8
    again = learner()
    again.load_local_state(made.local_state())
    again.train(RoundStart(again.initial() * 0), 1)
    assert again.state_dict(again.initial())["array 2"] == 9


def test_the_fit_that_tells_the_number_of_examples_is_the_first_round():
    Mean.fits = 0
    made = learner()
    made.train(RoundStart(made.initial()), 0)
    assert Mean.fits == 1
    Mean.fits = 0
    assert learner(samples=lambda context: 40 + context.node).samples == 41
    assert Mean.fits == 0


def test_a_method_corrects_a_round_as_a_whole():
    made = learner(training=TrainingConfig(learning_rate=0.5))
    start, push = made.initial() * 0, np.ones(8, np.float32)
    plain = made.train(RoundStart(start), 1).vector
    pushed = made.train(RoundStart(start, {"correction": push}, Variate()), 1).vector
    np.testing.assert_allclose(pushed, plain - 0.5)


def test_an_app_of_the_message_api_does_as_the_client():
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays, config = message.content["arrays"], message.content["config"]
        client = Mean(context)
        found, count, figures = client.fit(arrays.to_numpy_ndarrays(), config)
        figures = {"train_loss": figures["train_loss"] + config["more"], "num-examples": count}
        named = RecordDict({"arrays": ArrayRecord(found), "metrics": MetricRecord(figures)})
        return Message(content=named, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        loss, count, _ = Mean(context).evaluate(message.content["arrays"].to_numpy_ndarrays(), {})
        figures = MetricRecord({"eval_loss": loss, "eval_acc": 0.75, "num-examples": count})
        return Message(content=RecordDict({"metrics": figures}), reply_to=message)

    first = [np.ones((2, 3)), np.zeros(2), np.array(7)]
    made = learner(app, initial=lambda: ArrayRecord(first), fit_config=lambda number: {"more": number})
    done = made.train(RoundStart(made.initial()), 1)
    np.testing.assert_array_equal(done.vector, [0.5] * 6 + [1, 1])
    assert (done.samples, done.loss) == (11, 2.5)
    score = made.evaluate(done.vector, "test")
    assert (score.loss, score.accuracy, score.samples) == (2.0, 0.75, 20)


def odd(**methods):
    return type("Odd", (Mean,), methods)


def fitting(fit):
    return odd(fit=lambda _, parameters, config: fit(parameters))  # noqa: ARG005 - Flower's signature


@pytest.mark.parametrize(
    ("client", "how", "said"),
    [
        (fitting(lambda p: (p[:2], 3, {})), {}, "Odd: fit: Odd returned 2 arrays, and got 3"),
        (fitting(lambda p: ([p[0].T, *p[1:]], 3, {})), {}, "returned array 0 in shape (3, 2), and got (2, 3)"),
        (fitting(lambda p: (p, 0, {})), {}, "returned 0 as its number of examples"),
        (fitting(lambda p: p), {}, "returned no triple"),
        (odd(get_parameters=NumPyClient.get_parameters), {}, "initial: the client has no get_parameters"),
        (odd(get_parameters=lambda *_: [np.array(3)]), {}, "there are no floating-point arrays to share"),
        (odd(to_client=lambda _: 3), {}, "client_fn returned something else"),
        (odd(get_parameters=lambda *_: 1 / 0), {}, "first arrays: failed: ZeroDivisionError"),
        (ClientApp(), {}, "flower.task: initial: a ClientApp has no first arrays"),
        (ClientApp(Mean), {"initial": list}, "this ClientApp only wraps a client_fn"),
        (Mean, {"training": TrainingConfig(optimizer="adam")}, "training.optimizer: a Flower client has its own"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(client, how, said):
    with pytest.raises(UserError) as caught:
        learner(client, **how)
    assert said in str(caught.value)


def test_a_client_that_changes_its_mind_later_fails_that_round_alone():
    made = learner(odd(fit=lambda _, p, config: (p if config["server_round"] < 3 else p[:1], 3, {})))
    made.train(RoundStart(made.initial()), 1)
    with pytest.raises(LearningError, match="Odd returned 1 arrays, and got 3"):
        made.train(RoundStart(made.initial()), 2)
    assert made.local_state()["array 2"] == 7
