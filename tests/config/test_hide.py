"""`hide = "models"` in `[privacy]`: what it says with and without a budget, what contradicts it, who refuses whom."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from p2pfl import Federation, UserError
from p2pfl.config import (
    HideConfig,
    Mistakes,
    PrivacyConfig,
    federation_id,
    keys,
    load_config,
    refuse_broken_promises,
)
from p2pfl.config.charter import sections
from p2pfl.learn import method_of
from p2pfl.node import algorithm_of
from sim import with_privacy

HIDE = {"hide": "models"}
SHARED = {"epsilon": 3, "noise": "shared", "delta": 1e-5}
ALL = {**HIDE, "bits": 12, "colluders": 2, "outer": "momentum", "outer_rate": 0.5}


def hidden(privacy=HIDE, nodes=8, **keywords):
    return Federation(nodes=nodes, topology="complete", privacy=privacy, **keywords)


def test_the_defaults_are_those_of_the_word_alone_and_rounds_go_in_step():
    federation = hidden().config
    assert (federation.privacy, federation.hides) == (None, HideConfig(colluders=1, bits=8, outer="adam"))
    assert (federation.in_step_by, federation.method) == ("hidden models", "plain")
    for method in ("prox:mu=0.1", "variate:beta=0.5", "normalized:steps=9.0"):
        assert method_of(hidden(method=method).config).spec == method
    assert method_of(hidden(method="normalized", local_epochs=2).config).steps == 20
    assert Federation(nodes=8).config.hides is None


@pytest.mark.parametrize("table", [HIDE, ALL])
def test_a_saved_folder_hides_as_before(tmp_path, table):
    made = hidden(table)
    assert load_config(made.save(tmp_path / "ward")).hides == made.config.hides == HideConfig(**table)


def test_beside_a_budget_with_shared_noise_the_word_changes_nothing():
    without, beside = hidden(SHARED).config, hidden(SHARED | HIDE).config
    assert (beside.privacy, beside.hides) == (PrivacyConfig(epsilon=3.0, noise="shared", delta=1e-5), None)
    assert federation_id(beside) == federation_id(without)
    assert keys(beside) == keys(without)


WRONG = [
    ({"hide": "data"}, {}, "privacy.hide", "models"),
    *((HIDE | {"bits": bits}, {}, "privacy.bits", "4, 8, 12, 16, 24") for bits in (64, 0, 8.0, True)),
    (HIDE | {"outer": "sgd"}, {}, "privacy.outer", "adam, mean, momentum"),
    (HIDE | {"outer_rate": 0}, {}, "privacy.outer_rate", "above 0"),
    (HIDE | {"colluders": 0}, {}, "privacy.colluders", "from 1"),
    (HIDE | {"colluders": 7}, {}, "privacy.colluders", "1 to 6, or more nodes"),
    *(
        (HIDE | {key: value}, {}, f"privacy.{key}", "only hide, bits, colluders, outer, outer_rate")
        for key, value in {
            "delta": 1e-5,
            "clip": 2.0,
            "unit": "member",
            "rounds": 9,
            "accountant": "rdp",
            "test_set": "public",
            "rate": 0.1,
            "least": 3,
        }.items()
    ),
    (HIDE | {"epsilon": 3, "delta": 1e-5}, {}, "privacy.noise", '"shared"; or hide without epsilon'),
    (HIDE | {"noise": 1.1, "delta": 1e-5}, {}, "privacy.noise", '"shared"; or hide without epsilon'),
    (HIDE | {"epsilon": 3, "noise": 1.1, "delta": 1e-5}, {}, "privacy.noise", '"shared"; or hide without epsilon'),
    (HIDE | {"noise": "shared", "delta": 1e-5}, {}, "privacy.epsilon", "above 0"),
    *(
        (SHARED | HIDE | {key: ALL[key]}, {}, f"privacy.{key}", "without epsilon")
        for key in list(ALL)[1:]
        if key != "colluders"
    ),
    *((SHARED | {key: ALL[key]}, {}, f"privacy.{key}", 'hide = "models"') for key in ("bits", "outer", "outer_rate")),
    ({"bits": 8}, {}, "privacy.bits", 'hide = "models"'),
    (HIDE, {"nodes": 2}, "node", "3 or more, or no privacy.hide"),
    (HIDE, {"rounds": None, "time_s": 60}, "training.time_s", "training.rounds; or no privacy.hide"),
    (HIDE, {"stop": "no improvement in 9 rounds"}, "training.stop", "training.rounds"),
    (HIDE, {"schedule": "cosine:time_s=60"}, "training.schedule", "training.rounds"),
    (HIDE, {"rule": "trimmed-mean:b=1"}, "gossip.rule", "mean; or no privacy.hide"),
    (HIDE, {"share": ["0.*"]}, "gossip.share", "no privacy.hide"),
    *(
        (HIDE, {"method": method}, "training.method", "normalized or plain or prox or variate; or no privacy.hide")
        for method in ("fair", "momentum", "outer", "tracking")
    ),
    (HIDE, {"method": "variate", "local_epochs": 1}, "training.local_epochs", "local_steps; or normalized"),
    (HIDE, {"keep_optimizer": True}, "training.keep_optimizer", "false; or no privacy.hide"),
    (HIDE, {"closing": "train"}, "training.closing", "mix"),
    (HIDE, {"when_through": "train"}, "training.when_through", "mix"),
    (HIDE, {"task": "csv", "options": {"model": "trees"}}, "privacy.hide", "no privacy.hide with trees"),
]


@pytest.mark.parametrize(("table", "other", "key", "allowed"), WRONG)
def test_a_mistake_is_one_error_that_names_key_and_what_is_allowed(monkeypatch, table, other, key, allowed):
    found = []
    monkeypatch.setattr("p2pfl.federation.Mistakes", lambda file: found.append(Mistakes(file)) or found[0])
    with pytest.raises(UserError):
        hidden(table, **other)
    (mistake,) = found[0].errors
    assert mistake.key in (key, key.rpartition(".")[2], f"{key}s")
    assert allowed in mistake.allowed


def test_removed_members_count_among_those_who_must_sign():
    federation = hidden().config
    mistakes = Mistakes(federation.path)
    members = tuple(replace(one, retired=one.index < 4) for one in federation.members)
    refuse_broken_promises(replace(federation, members=members), mistakes)
    assert [(one.key, one.value) for one in mistakes.errors] == [("node", 4)]


def test_nodes_of_which_only_some_hide_differ_by_that_key(tmp_path):
    bare, hiding, finer = (hidden(table).config for table in (None, HIDE, HIDE | {"bits": 16}))
    assert {name for name, _ in sections(hiding)} - {name for name, _ in sections(bare)} == {"privacy"}
    assert dict(keys(hiding)).keys() - dict(keys(bare)).keys() == {"privacy.hide"}
    assert dict(keys(finer)).keys() - dict(keys(hiding)).keys() == {"privacy.bits"}
    assert len({federation_id(one) for one in (bare, hiding, finer)}) == 3


@pytest.mark.parametrize("table", [HIDE, SHARED])
def test_keys_of_gossip_have_no_effect_on_sums_which_one_notice_says(table):
    (notice,) = hidden(table, compressor="none", closing_rounds=3).config.notices
    assert notice.endswith("as nothing is gossiped: training.closing_rounds, gossip.compressor")
    assert not hidden(table).config.notices
    assert not Federation(nodes=8, compressor="none", closing_rounds=3).config.notices


def test_it_may_be_turned_off_for_a_simulation():
    assert with_privacy(hidden().config, "none").in_step_by == ""


def test_a_node_that_cannot_hide_its_model_does_not_gossip_it():
    with pytest.raises(UserError, match="no part in sums"):
        algorithm_of((), SimpleNamespace(federation=hidden().config), None)
