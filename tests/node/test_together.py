"""`Federation(...).run()`: real nodes in this process, and what a program gets when it gave something wrong."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import p2pfl
import p2pfl.fleet.report as made
from p2pfl import Federation, Method, Task, UserError
from p2pfl.config import load_node
from p2pfl.errors import LearningError
from p2pfl.fleet import InProcessFleet
from p2pfl.learn import metadata_of

SIZE = 6


class Half(Method):
    """Plain with half of each gradient."""

    def gradient(self, g, w, start):
        return g / 2


def data(node):
    """Node i has samples around its own point: the optimum of all is the mean, weighted by the numbers of samples."""
    rng = np.random.default_rng(node.node)
    x = torch.ones(10 * (node.node + 1), 1)
    y = torch.tensor(rng.normal(node.node, 0.1, (len(x), SIZE)), dtype=torch.float32)
    return (x, y), None


def linear():
    return torch.nn.Linear(1, SIZE, bias=False)


def squares(outputs, targets):
    return ((outputs - targets) ** 2).mean()


TASK = Task(model=linear, data=data, loss=squares)


def small(**settings):
    return Federation(**{"task": TASK, "nodes": 4, "rounds": 5, "start_wait_s": 20.0} | settings)


@pytest.fixture
def untouched(monkeypatch, tmp_path):
    """No folder stays behind, and no thread."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(threading.enumerate())
    yield
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in set(threading.enumerate()) - before if not thread.daemon]


def optimum(nodes):
    targets = [
        data(p2pfl.learn.task.NodeContext(node=i, nodes=nodes, name="", seed=0, base_dir=None)) for i in range(nodes)
    ]
    return torch.cat([y for (_, y), _ in targets]).mean(0).numpy()


@pytest.mark.parametrize("compressor", ["none", pytest.param("fragment:3", marks=pytest.mark.long)])
def test_real_nodes_of_one_process_reach_the_known_optimum(untouched, monkeypatch, compressor):
    """Not only agree: the mean of all samples is where the sum of all losses is least, whatever each node holds."""
    kept = []
    read = made._model
    monkeypatch.setattr(made, "_model", lambda child: kept.append(read(child)) or kept[-1])
    closing = 20 if compressor == "none" else 60
    how = {"rounds": 40, "local_steps": 2, "learning_rate": 0.3, "batch_size": 40, "closing_rounds": closing}
    found = small(**how, compressor=compressor).run()
    assert all(node.finished for node in found.nodes)
    # SGD on batches of 40 of up to 40 samples: whole batches at the largest node, and little noise elsewhere.
    assert np.abs(np.array(kept) - optimum(4)).max() < 0.02
    assert found.consensus_distance < 1e-3


@pytest.mark.long
def test_it_runs_while_another_event_loop_is_busy_as_in_a_notebook(untouched):
    async def cell():
        return small().run()

    assert asyncio.run(cell()).nodes[0].rounds >= 5


@pytest.mark.long
def test_a_method_of_the_program_itself_is_found(untouched):
    assert small(method=Half).run().config["training"]["method"].endswith(":Half")


@pytest.mark.long
def test_progress_is_told_from_the_first_rounds_on(untouched):
    points = []
    report = small(rounds=30).run(on_progress=points.append)
    assert points
    assert points[-1].rounds.mean <= report.history[-1].rounds.mean


class Failing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        if self.training:
            raise RuntimeError("not today")
        return self.inner(x)


SHARED = linear()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rounds": -1}, r"Federation: rounds: impossible value \(found -1\); allowed: a whole number from 1"),
        ({"round": 3}, "Federation: round: unknown key; did you mean 'rounds'"),
        ({"nodes": 1}, "Federation: nodes: too few nodes"),
        ({"nodes": "four"}, "Federation: nodes: impossible value"),
        ({"nodes": ["a", "a"]}, "have the same name"),
        ({"nodes": 65}, "simulate them"),
        ({"topology": "rink"}, "Federation: topology: .*did you mean 'ring'"),
        ({"topology": "erdos-renyi:p=0.01", "nodes": 20}, "falls into .* parts that never hear"),
        ({"rule": lambda rows: rows[0]}, "Federation: rule: this cannot be found by its name"),
        ({"task": "digit"}, "Federation: task: no such task"),
        ({"options": 3}, "Federation: options: impossible value"),
        ({"options": {"name": "digits"}}, "Federation: options: impossible value"),
        ({"edge": {"between": 1}}, "Federation: edge: impossible value"),
        ({"share": ["nothing.*"]}, "Federation: share: "),
        ({"device": "gpu"}, "Federation: device: impossible value"),
        ({"device": "cuda:97"}, r"Federation: device: no such device here \(found 'cuda:97'\); allowed: auto, "),
        ({"device": {"node9": "cpu"}}, "Federation: device: no such node"),
        ({"precision": {"node0": "fp8"}}, "Federation: precision: impossible value .* float32, bf16"),
        ({"stop": "no improvement of auc in 3 rounds"}, "Federation: stop: this node has no test data"),
        ({"task": Task(model=lambda: torch.nn.Linear(2, 1), data=data, loss=squares)}, "shapes cannot be"),
        ({"task": Task(model=lambda: SHARED, data=data, loss=squares)}, "the same module twice"),
        ({"task": Task(model=linear, data=lambda _: 1 / 0)}, "data failed: ZeroDivisionError"),
    ],
)
def test_a_mistake_is_one_clear_error_and_leaves_nothing_behind(untouched, settings, said):
    with pytest.raises(UserError, match=said):
        small(**settings).run()


def test_rounds_that_give_no_finite_model_end_the_run(untouched):
    with pytest.raises(LearningError, match="every round raised an error or gave no finite model"):
        small(learning_rate=1e30).run()


def test_a_task_that_fails_has_its_own_exception_as_the_cause(untouched):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a session that nobody closed would say so
        with pytest.raises(LearningError, match="failed: RuntimeError: not today") as raised:
            small(task=Task(model=Failing, data=data, loss=squares)).run()
        gc.collect()
    assert isinstance(raised.value.__cause__, RuntimeError)


@pytest.mark.long
def test_a_test_that_fails_ends_the_run_too(untouched):
    def broken(outputs, targets):
        raise ZeroDivisionError("no metric")

    with pytest.raises(LearningError, match="evaluation failed: ZeroDivisionError: no metric"):
        small(task=Task(model=linear, data=data, loss=squares, metrics={"m": broken})).run()


def test_ctrl_c_cancels(untouched):
    running = threading.Event()
    threading.Thread(target=lambda: running.wait(30) and os.kill(os.getpid(), signal.SIGINT), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        small(rounds=1_000_000).run(on_progress=lambda _: running.set())


def test_a_callback_that_fails_ends_the_run_with_its_error(untouched):
    def fail(_):
        raise ZeroDivisionError("told too much")

    with pytest.raises(ZeroDivisionError, match="told too much"):
        small(rounds=1_000_000).run(on_progress=fail)


def test_what_is_saved_is_what_is_loaded(tmp_path):
    made = Federation(
        task="digits",
        options={"partition": "shards:2"},
        nodes=["north", "east", "south"],
        rounds=7,
        learning_rate=0.05,
        share=["0.*"],
        edge=[{"between": ["north", "south"], "compressor": "none"}],
        seed=3,
        name="ward-7",
        device={"north": "cuda:1"},
        precision="bf16",
    )
    loaded = p2pfl.load_federation(made.save(tmp_path / "ward-7"))
    for part in ("name", "seed", "topology", "task", "training", "gossip", "edges", "edge_compressors"):
        assert getattr(loaded.config, part) == getattr(made.config, part)
    assert [member.name for member in loaded.config.members] == ["north", "east", "south"]
    compute = [load_node(tmp_path / "ward-7" / name, loaded.config).compute for name in ("north", "east")]
    assert [(one.device, one.precision) for one in compute] == [("cuda:1", "bf16"), ("cpu", "bf16")]
    with pytest.raises(UserError, match="already exists"):
        made.save(tmp_path / "ward-7")


@pytest.mark.parametrize("settings", [{}, {"task": "digits", "method": "__main__:Half"}])
def test_what_no_file_can_name_is_not_saved(tmp_path, settings):
    with pytest.raises(UserError, match="can only name"):
        small(**settings).save(tmp_path / "ward-7")
    assert list(tmp_path.iterdir()) == []


def test_a_task_file_goes_with_the_saved_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from p2pfl.learn.digits import digits as task\n", encoding="utf-8")
    folder = Federation(task="mine.py:task", nodes=3, rounds=2).save("saved")
    monkeypatch.chdir("/")
    assert (folder / "mine.py").is_file()
    assert p2pfl.load_federation(folder).config.task.name == "mine.py:task"


@pytest.mark.parametrize("package", ["p2pfl", "sim"])
def test_the_names_for_programs_are_what_tab_completion_shows(package):
    module = __import__(package)
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name).__doc__, name


def test_a_class_whose_name_leads_to_another_one_is_refused():
    class Method(p2pfl.Method):
        pass

    Method.__module__, Method.__qualname__ = "p2pfl", "Method"
    with pytest.raises(UserError, match="its name now belongs to another object"):
        Federation(method=Method)


def test_a_class_that_is_another_one_by_now_is_refused_when_it_is_used(monkeypatch):
    federation = small(method=Half)
    monkeypatch.setattr(sys.modules[__name__], "Half", type("Half", (Method,), {}))
    with pytest.raises(UserError, match="belongs to another object"):
        federation.run()


def test_numbers_of_numpy_are_numbers():
    assert len(small(nodes=np.int64(5), rounds=np.int32(3)).config.members) == 5


def test_a_relative_path_is_that_of_where_the_object_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from p2pfl.learn.digits import digits as task\n", encoding="utf-8")
    federation = Federation(task="mine.py:task", nodes=2, topology="path", rounds=1, closing_rounds=0)
    monkeypatch.chdir("/")
    assert federation.run().nodes[0].finished


@pytest.mark.long
def test_what_it_raises_there_ends_the_run(untouched):
    with pytest.raises(ZeroDivisionError):
        small().run(on_round=lambda state: 1 / (state.rounds - 2))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """One run with all that a program can ask of its nodes: the report, what it has heard, the folder of models."""
    heard, folder = [], tmp_path_factory.mktemp("models") / "run1"

    def on_round(state):
        with pytest.raises(ValueError, match="read-only"):
            state.vector[0] = 1.0
        tensor = state.state_dict()["weight"]
        assert np.array_equal(tensor.reshape(-1), state.vector)
        assert (state.loss > 0, state.steps, state.tested_rounds) == (True, 20, None)
        heard.append((state.node, state.rounds, tensor))

    asked = {
        "on_round": on_round,
        "checkpoints": folder,
        "checkpoint_every": 2,
        "checkpoints_kept": 2,
        "references": True,
    }
    described = small(rounds=7, device={"node1": "auto"}, precision={"node0": "bf16"})
    return described.run(**asked), heard, folder


@pytest.mark.long
def test_a_program_hears_of_each_round_of_each_node_and_has_the_model_in_its_hands(full):
    report, heard, _ = full
    for node in report.nodes:
        assert [rounds for name, rounds, _ in heard if name == node.name] == list(range(1, node.rounds + 1))
    assert len({tensor.tobytes() for _, _, tensor in heard}) > len(report.nodes)


def test_checkpoints_are_the_newest_few_and_hold_the_model_of_their_round(full):
    report, _, folder = full
    for node in report.nodes:
        files = sorted((folder / node.name).iterdir())
        assert len(files) == 2
        assert files[-1].name == f"round-{node.rounds:08d}.safetensors", "the last model, too"
        assert load_file(files[-1])["weight"].shape == (SIZE, 1)
        assert metadata_of(files[-1].read_bytes())["rounds"] == str(node.rounds)
    with pytest.raises(UserError, match=r"checkpoint_every: impossible value \(found 0\)"):
        small().run(checkpoints=folder, checkpoint_every=0)


def test_nodes_on_different_devices_mix_and_the_report_says_where_each_has_trained(full):
    report, _, _ = full
    assert [node.device for node in report.nodes if node.name in ("node0", "node3")] == ["cpu, bf16", "cpu"]
    assert all(node.finished and node.exchanges for node in report.nodes)


def test_the_report_says_what_one_model_of_all_data_would_know(full):
    report, _, _ = full
    taken = round(np.mean([node.rounds for node in report.nodes]))
    assert taken >= 7
    assert report.reference.centralized.one_node.steps == taken * 20, "as many as were trained, not as were asked for"


@pytest.mark.long
def test_a_slow_callback_holds_up_no_node(untouched):
    """Drawing takes seconds, and sessions, timers and patience go on meanwhile."""
    held = threading.Event()
    points = []

    def draw(point):
        points.append(point)
        held.wait(60)

    def let_go_when_a_node_has_gone_on():
        held.set()

    federation = small(rounds=20)
    threading.Timer(5.0, let_go_when_a_node_has_gone_on).start()
    report = federation.run(on_progress=draw)
    assert report.nodes[0].rounds >= 20
    assert points[0].rounds.mean < 20


def test_ctrl_c_stops_the_loading_of_data_at_once(untouched):
    loading = threading.Event()

    def slow(node):
        loading.set()
        for _ in range(6000):  # one sleep of a minute might begin just after the signal, and hear nothing of it
            time.sleep(0.01)
        return data(node)

    threading.Thread(target=lambda: loading.wait(30) and os.kill(os.getpid(), signal.SIGINT), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        small(task=Task(model=linear, data=slow, loss=squares)).run()


def test_a_task_that_raises_what_asyncio_cancels_with_is_no_success(untouched):
    class Cancelled(Failing):
        def forward(self, x):
            if self.training:
                raise asyncio.CancelledError
            return self.inner(x)

    with pytest.raises(LearningError, match="CancelledError"):
        small(task=Task(model=Cancelled, data=data, loss=squares)).run()


def test_ctrl_c_before_the_nodes_have_begun_is_not_lost(untouched, monkeypatch):
    """It came when there was nothing to cancel yet, and all of the run was waited for."""
    run = InProcessFleet.run

    async def late(self, setups):
        os.kill(os.getpid(), signal.SIGINT)
        while not self.stopping:  # noqa: ASYNC110 - a flag of another thread
            await asyncio.sleep(0.01)
        return await run(self, setups)

    monkeypatch.setattr(InProcessFleet, "run", late)
    with pytest.raises(KeyboardInterrupt):
        small(rounds=1_000_000).run()


def test_files_beside_a_federation_go_with_it_from_wherever_it_is_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.edges").write_text("0 1\n1 2\n2 3\n", encoding="utf-8")
    federation = Federation(nodes=4, topology="./mine.edges", rounds=2)
    monkeypatch.chdir("/")
    again = p2pfl.load_federation(federation.save(tmp_path / "saved"))
    assert again.config.edges == federation.config.edges


def test_a_file_that_is_gone_is_named_and_not_the_folder(tmp_path):
    federation = Federation(task="gone.py:task", nodes=2, topology="path")
    with pytest.raises(UserError, match=r"gone\.py: task: there is no such file"):
        federation.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
