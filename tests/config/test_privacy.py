"""`[privacy]`: what it says, what contradicts it, and that nothing changes where it is not there."""

from __future__ import annotations

import pytest

import p2pfl
from p2pfl.config import OF_SHARED, PrivacyConfig, federation_id, federation_mistakes, keys, load_config
from p2pfl.config.charter import sections
from p2pfl.errors import UserError
from p2pfl.federation import Federation
from p2pfl.limits import MAX_SECTIONS

TABLE = "epsilon = 8.0\ndelta = 1e-5"
OPEN_TEST = f'{TABLE}\ntest_set = "public"'
MARK = "# The members"


@pytest.fixture
def with_privacy(valid_text, write):
    def with_privacy(table=TABLE, right="", wrong=""):
        assert right in valid_text
        return write(valid_text.replace(right, wrong).replace(MARK, f"[privacy]\n{table}\n\n{MARK}"))

    return with_privacy


def test_a_short_table_and_one_with_the_defaults_written_out_are_the_same(with_privacy):
    short = load_config(with_privacy())
    usual = 'unit = "record"\nclip = 1.0\naccountant = "prv"\ntest_set = "private"\n'
    assert short.privacy == PrivacyConfig(epsilon=8.0, delta=1e-5)
    assert federation_id(load_config(with_privacy(usual + TABLE))) == federation_id(short)


def test_the_table_is_a_section_of_its_own_and_counts_by_key(with_privacy, valid_text, write):
    bare, told = load_config(write(valid_text)), load_config(with_privacy())
    assert [name for name, _ in sections(told)] == [*(name for name, _ in sections(bare)), "privacy"]
    # later keys count if they are given
    founding = {f"privacy.{key}" for key in PrivacyConfig.__slots__ if key not in OF_SHARED}
    assert {name for name, _ in keys(told)} - {name for name, _ in keys(bare)} == founding
    other = load_config(with_privacy(TABLE.replace("8.0", "3")))
    before, after = dict(keys(told)), dict(keys(other))
    assert [name for name in before if before[name] != after[name]] == ["privacy.epsilon"]
    assert len(before) < MAX_SECTIONS - 8


ROUNDS = "rounds = 40"
STOPPING = 'rounds = 40\nstop = "no improvement of accuracy in 9 rounds"'


@pytest.mark.parametrize(
    ("table", "change", "key", "allowed"),
    [
        ("delta = 1e-5", (), "privacy.epsilon", "or noise"),
        ("epsilon = 8.0", (), "privacy.delta", "above 0"),
        (f"{TABLE}\nnoise = 1.1", (), "privacy.noise", "one of the two"),
        ("epsilon = 0\ndelta = 1e-5", (), "privacy.epsilon", "above 0"),
        (f'{TABLE}\nunit = "row"', (), "privacy.unit", "record, member"),
        (f"{TABLE}\nepsilom = 1", (), "privacy.epsilom", "epsilon"),
        (TABLE, (ROUNDS, "time_s = 60"), "privacy.rounds", "whole number"),
        (TABLE, (ROUNDS, 'stop = "after 2 h"'), "privacy.rounds", "whole number"),
        (TABLE, (ROUNDS, 'stop = "no improvement in 9 rounds"'), "training.stop", "public"),
        (TABLE, (ROUNDS, STOPPING), "training.stop", "public"),
        (TABLE, ('name = "digits"', 'name = "csv"\nschema = "agreed"'), "task.schema", "schema file"),
        (TABLE, ('name = "digits"', 'name = "csv"\npartition = "iid"'), "task.partition", "a table of its own"),
        (TABLE, ('name = "digits"', 'name = "csv"\npath = "all.csv"'), "task.path", "a table of its own"),
        (OPEN_TEST, ('name = "digits"', 'name = "csv"\nholdout = 0.2'), "privacy.test_set", "test_path"),
        (OPEN_TEST, ('name = "digits"', 'name = "lora"\nmodel = "tiny"'), "privacy.test_set", "test_path"),
        (f'{TABLE[:-4]}0.5\nunit = "member"', (), "privacy.delta", "0.33"),
        (TABLE, (ROUNDS, 'rounds = 40\nwhen_through = "train"'), "training.when_through", "mix"),
        (TABLE, (ROUNDS, "rounds = 40\nlogit_adjust = 1.0"), "training.logit_adjust", "member"),
        (f'{TABLE}\nunit = "member"', ("[gossip]", '[gossip]\nshare = ["body.*"]'), "gossip.share", "whole model"),
    ],
)
def test_a_mistake_names_file_key_and_what_is_allowed(with_privacy, table, change, key, allowed):
    path = with_privacy(table, *change)
    (mistake,) = federation_mistakes(path)
    assert (mistake.file, mistake.key) == (str(path), key)
    assert allowed in mistake.allowed


def test_a_node_that_is_through_only_mixes_unless_nothing_is_promised(with_privacy, valid_text, write):
    assert load_config(with_privacy()).training.when_through == "mix"
    assert load_config(with_privacy(TABLE, ROUNDS, 'rounds = 40\nwhen_through = "mix"')).privacy is not None
    assert load_config(write(valid_text)).training.when_through == "train"


def test_a_public_test_set_may_end_the_training_and_rounds_of_its_own_bound_a_time(with_privacy):
    public = f'{TABLE}\ntest_set = "public"\n'
    assert load_config(with_privacy(public, ROUNDS, STOPPING)).privacy.test_set == "public"
    assert load_config(with_privacy(f"{TABLE}\nrounds = 9", ROUNDS, "time_s = 60")).privacy.rounds == 9


def test_who_may_change_the_rounds_may_not_raise_a_budget_that_follows_from_them(with_privacy, keys):
    table, admin = "noise = 1.1\ndelta = 1e-5", f'topology = "ring"\nadmin = ["{keys[3]}"]'
    (mistake,) = federation_mistakes(with_privacy(table, 'topology = "ring"', admin))
    assert mistake.key == "privacy.rounds"
    assert load_config(with_privacy(f"{table}\nrounds = 40", 'topology = "ring"', admin)).privacy.noise == 1.1
    assert load_config(with_privacy(TABLE, 'topology = "ring"', admin)).privacy.rounds is None


def test_in_python_it_is_a_dictionary_that_a_saved_folder_has_too(tmp_path):
    made = Federation(nodes=2, topology="complete", privacy={"epsilon": 8, "delta": 1e-5, "rounds": None})
    assert made.config.privacy == PrivacyConfig(epsilon=8.0, delta=1e-5)
    loaded = p2pfl.load_federation(made.save(tmp_path / "ward-7"))
    assert loaded.config.privacy == made.config.privacy
    assert Federation(nodes=2, topology="complete").config.privacy is None


@pytest.mark.parametrize(("privacy", "key"), [(8.0, "privacy"), ({"epsilon": 8}, "privacy.delta")])
def test_in_python_a_mistake_names_the_keyword(privacy, key):
    with pytest.raises(UserError) as caught:
        Federation(nodes=2, topology="complete", privacy=privacy)
    assert (caught.value.file, caught.value.key) == ("Federation", key)


def test_references_of_real_nodes_are_refused_before_any_of_them_starts():
    federation = Federation(nodes=2, topology="complete", privacy={"epsilon": 8, "delta": 1e-5})
    with pytest.raises(UserError, match="without noise") as caught:
        federation.run(references=True)
    assert caught.value.key == "references"
