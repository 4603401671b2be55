"""The identity of a federation stays when a version adds a key, and no default is ever changed in place."""

from __future__ import annotations

import dataclasses

import pytest

from p2pfl.config import (
    ALWAYS,
    GossipConfig,
    HideConfig,
    PrivacyConfig,
    TrainingConfig,
    counting,
    federation_id,
    keys,
    load_config,
)

SECTIONS = {"training": TrainingConfig, "gossip": GossipConfig, "privacy": PrivacyConfig, "hides": HideConfig}
NONE_THERE = dataclasses.MISSING
DEFAULTS = {
    "training": {
        "rounds": 40,
        "time_s": None,
        "local_steps": 20,
        "local_epochs": None,
        "batch_size": 16,
        "optimizer": "sgd",
        "learning_rate": 0.2,
        "schedule": "constant",
        "keep_optimizer": False,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "method": None,
        "speed_correction": 1.0,
        "closing_rounds": 10,
        "closing": "mix",
        "logit_adjust": 0.0,
        "when_through": "train",
        "stop": None,
        "evaluate_every": 1,
    },
    "gossip": {
        "compressor": "q4",
        "share": ("*",),
        "rule": "mean",
        "staleness": "hinge-polynomial:4,0.5",
        "gamma": 1.0,
        "start_wait_s": 60.0,
        "linger_s": 30.0,
        "max_wait_s": 5.0,
        "exchanges_per_s": 200.0,
        "audit_every": 64,
        "vitals": True,
        "share_frozen": True,
    },
    "privacy": {
        "unit": "record",
        "epsilon": None,
        "noise": None,
        "delta": NONE_THERE,
        "clip": 1.0,
        "rounds": None,
        "accountant": "prv",
        "test_set": "private",
        "rate": 0.2,
        "least": None,
        "colluders": 1,
    },
    "hides": {"hide": "models", "bits": 8, "colluders": 1, "outer": "adam", "outer_rate": None},
}
"""Of this file a row is added for a new key; none is ever changed."""


@pytest.mark.parametrize("section", SECTIONS)
def test_every_default_is_what_it_was(section):
    assert {key.name: key.default for key in dataclasses.fields(SECTIONS[section])} == DEFAULTS[section]


LATER = {"schedule", "keep_optimizer", "stop", "share_frozen", "rate", "least", "colluders", "closing", "logit_adjust"}
LATER |= {"bits", "outer", "outer_rate"}
"""Keys that came after the first version. A new key is added here, and declares when it counts; none ever leaves."""


@pytest.mark.parametrize("section", SECTIONS)
def test_the_keys_of_the_first_version_and_no_others_always_count(section):
    """Else the identity of today's federations would be another one."""
    always = {key.name for key in dataclasses.fields(SECTIONS[section]) if key.metadata["counts"] == ALWAYS}
    assert always == set(DEFAULTS[section]) - LATER


@pytest.mark.parametrize("section", ["training", "gossip"])
def test_a_key_that_a_later_version_adds_counts_only_where_it_is_set(valid_text, write, section):
    federation = load_config(write(valid_text))
    before = getattr(federation, section)
    later = dataclasses.make_dataclass(
        "Later", [("newest", int, dataclasses.field(default=7))], bases=(SECTIONS[section],), frozen=True, kw_only=True
    )
    values = {key.name: getattr(before, key.name) for key in dataclasses.fields(before)}
    usual, other = (dataclasses.replace(federation, **{section: later(**values, **own)}) for own in ({}, {"newest": 8}))
    assert federation_id(usual) == federation_id(federation)
    assert keys(usual) == keys(federation)
    assert federation_id(other) != federation_id(federation)
    assert set(dict(keys(other))) - set(dict(keys(federation))) == {f"{section}.newest"}


def test_a_key_counts_at_its_default_or_only_where_it_is_set():
    always = {key: value for key, value in DEFAULTS["gossip"].items() if key not in LATER}
    assert counting(GossipConfig()) == always
    assert counting(GossipConfig(share_frozen=False)) == always | {"share_frozen": False}
    assert set(counting(TrainingConfig(), named=True)) == set(DEFAULTS["training"]) - {"closing", "logit_adjust"}
