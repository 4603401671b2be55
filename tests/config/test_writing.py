"""New files teach: what they show as a default is the default, and taking a '#' away changes nothing."""

from __future__ import annotations

import re

import pytest

from p2pfl.config import GOSSIP, TRAINING, NewMember, federation_id, load_config, load_node, node_text
from p2pfl.config.writing import TABLES

OFF = re.compile(r"(?m)^# (?=[a-z_]+ = )")


def test_every_default_shown_is_the_default(valid_text, write):
    before = load_config(write(valid_text))
    after = load_config(write(OFF.sub("", valid_text)))
    assert federation_id(before) == federation_id(after)


def test_every_key_of_training_and_gossip_is_shown_or_named(valid_text):
    assert [key for key in (*TRAINING, *GOSSIP) if f"{key} = " not in valid_text] == []


def test_a_node_file_shows_its_defaults_too(valid_text, write, tmp_path):
    federation = load_config(write(valid_text))
    (tmp_path / "pi1").mkdir()
    text = node_text(NewMember(name="pi1", key="", address="10.0.0.1:8470")).replace('# path = "data.npz"', "")
    values = []
    for version in (text, OFF.sub("", text)):
        (tmp_path / "pi1" / "node.toml").write_text(version, encoding="utf-8")
        values.append(load_node(tmp_path / "pi1", federation))
    assert values[0] == values[1]
    assert values[0].listen == "127.0.0.1:8470"


@pytest.mark.parametrize("table", TABLES)
def test_every_key_says_what_it_is_for(table):
    for key, kind in TABLES[table].items():
        assert len(kind.means.split()) >= 2, key
        assert not kind.means.endswith("."), key
        assert "\n" not in kind.means, key


@pytest.mark.parametrize(("key", "more"), [("# closing_rounds", ""), ("local_steps", "; or local_epochs = 1")])
def test_a_key_of_a_new_file_has_its_meaning_behind_it(valid_text, key, more):
    line = next(line for line in valid_text.splitlines() if line.startswith(f"{key} = "))
    assert line.endswith(f"  # {TRAINING[key.removeprefix('# ')].means}{more}")
