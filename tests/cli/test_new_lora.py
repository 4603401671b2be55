"""`p2pfl new --task lora`: a node for each text, with adapters of one language model."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from p2pfl.config import load_config, load_node, node_file


@pytest.fixture
def there(tmp_path):
    """A folder that looks like a model, and three texts, one of them a folder."""
    model, texts = tmp_path / "tiny", tmp_path / "texts"
    for place in (model, texts, texts / "Old mails"):
        place.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_bytes(b"{}")
    for name in ("anna.txt", "ben.txt", "Old mails/1.txt"):
        (texts / name).write_text("some text", encoding="utf-8")
    return tmp_path


def test_each_text_has_a_node_and_training_suits_adapters(p2pfl, there):
    outcome = p2pfl("new", "chat", "--task", "lora", "--model", "tiny", "--data", "texts")
    assert outcome.code == 0, outcome.err
    federation = load_config(there / "chat")
    assert [member.name for member in federation.members] == ["Old-mails", "anna", "ben"]
    assert federation.task.name == "lora"
    assert federation.task.options == {"model": str(there / "tiny"), "rank": 8, "alpha": 16, "block": 128}
    training = federation.training
    assert (training.optimizer, training.learning_rate, training.method) == ("adamw", 0.002, "plain")
    data = {name: load_node(node_file(federation, name), federation).data for name in ("Old-mails", "ben")}
    assert data == {
        "Old-mails": {"path": str(there / "texts/Old mails")},
        "ben": {"path": str(there / "texts/ben.txt")},
    }


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (None, ["--model", "tiny"], "--data: is missing"),
        (None, ["--data", "texts"], "--model: is missing"),
        (None, ["--model", "tiny", "--data", "tiny"], "--data: no texts are there"),
        (None, ["--model", "tiny", "--data", "texts", "--nodes", "2"], "--nodes: there must be a name for each of 3"),
        (None, ["--model", "tiny", "--data", "texts/Old mails"], "--data: there is only one text"),
        (None, ["--model", "texts", "--data", "texts"], "model: there is no model: config.json is missing"),
        ("tiny/tokenizer.json", ["--model", "tiny", "--data", "texts"], "model: there is no tokenizer"),
        ("tiny/model.safetensors", ["--model", "tiny", "--data", "texts"], "there are no weights as safetensors"),
        (("texts/ben.txt", b"\xff"), ["--model", "tiny", "--data", "texts"], "ben.txt: is not UTF-8"),
        (("texts/ben.txt", b""), ["--model", "tiny", "--data", "texts"], "ben.txt: is empty"),
    ],
)
def test_what_does_not_fit_is_one_error_and_leaves_nothing(p2pfl, there, change, words, said):
    if isinstance(change, tuple):
        (there / change[0]).write_bytes(change[1])
    elif change is not None:
        (there / change).unlink()
    outcome = p2pfl("new", "chat", "--task", "lora", *words)
    assert (outcome.code, said in outcome.err, (there / "chat").exists()) == (2, True, False), outcome.err


def test_what_fragments_would_save_is_said_of_large_adapters_with_four_neighbors(p2pfl, there):
    """Of rank 8, on a layer of 1 by 400,000; embeddings and the last layer have none."""
    layers = {"up": (1, 400_000), "embed_tokens": (1, 900_000), "lm_head": (1, 900_000), "norm": (900_000,)}
    weights = {f"model.{name}.weight": np.zeros(shape, np.float16) for name, shape in layers.items()}
    save_file(weights, there / "tiny/model.safetensors")
    for name in ("carl.txt", "dora.txt"):
        (there / "texts" / name).write_text("some text", encoding="utf-8")
    for topology, words in (("complete", "4 neighbors' models: 64 MB less memory, and 26 MB sent"), ("ring", "")):
        how = ("--model", "tiny", "--data", "texts", "--topology", topology)
        outcome = p2pfl("new", f"chat-{topology}", "--task", "lora", *how)
        assert (outcome.code, "fragment:2" in outcome.err) == (0, bool(words))
        assert words in outcome.err


def test_its_options_are_refused_for_other_tasks(p2pfl, there):
    outcome = p2pfl("new", "chat", "--task", "digits", "--model", "tiny")
    assert (outcome.code, "--model: this is only for --task lora" in outcome.err) == (2, True)
