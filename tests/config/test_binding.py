"""What changes the identity of a federation, and what does not."""

from __future__ import annotations

import hashlib

import pytest

from p2pfl.config import federation_id, keys, load_config
from p2pfl.config.charter import sections
from p2pfl.limits import MAX_SECTIONS

EDGE = '[[edge]]\nbetween = ["pi0", "pi1"]\ncompressor = "{spec}"\n\n'


@pytest.fixture
def differing(valid_text, write):
    """Names of the sections whose hashes change when `right` becomes `wrong`."""

    def differing(right, wrong):
        assert right in valid_text
        before = load_config(write(valid_text))
        after = load_config(write(valid_text.replace(right, wrong)))
        names = {
            name for (name, one), (_, other) in zip(sections(before), sections(after), strict=True) if one != other
        }
        assert (federation_id(before) != federation_id(after)) == bool(names)
        return names

    return differing


@pytest.mark.parametrize(
    ("right", "wrong", "key"),
    [
        ("seed = 0", "seed = 1", "federation.seed"),
        ('name = "digits"', 'name = "digits"\npartition = "iid"', "task.options"),
        ("rounds = 40", "rounds = 41", "training.rounds"),
        ("# momentum = 0.0", "momentum = 0.5", "training.momentum"),
        ('# schedule = "constant"', 'schedule = "cosine:rounds=9"', "training.schedule"),
        ("# keep_optimizer = false", "keep_optimizer = true", "training.keep_optimizer"),
        ("rounds = 40", 'rounds = 40\nstop = "after 1 h"', "training.stop"),
        ('compressor = "q4"', 'compressor = "q8"', "gossip.compressor"),
        ("# The members", EDGE.format(spec="q8") + "# The members", "edges"),
        ('name = "pi1"', 'name = "pi7"', "node"),
    ],
)
def test_a_change_is_named_by_its_key_alone(valid_text, write, right, wrong, key):
    before = keys(load_config(write(valid_text)))
    after = keys(load_config(write(valid_text.replace(right, wrong))))
    assert [name for (name, one), (_, other) in zip(before, after, strict=True) if one != other] == [key]


def test_a_binding_has_room_for_every_key_and_equal_values_of_two_keys_hash_apart(valid_text, write):
    found = dict(keys(load_config(write(valid_text))))
    assert len(found) < MAX_SECTIONS - 8
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    ("right", "wrong", "section"),
    [
        ('name = "ward-7"', 'name = "ward-8"', "federation"),
        ("rounds = 40", "rounds = 41", "training"),
        ('# share = "*"', 'share = "backbone.*"', "gossip"),
        ('"ring"', '"path"', "edges"),
    ],
)
def test_a_change_is_seen_in_its_section_alone(differing, right, wrong, section):
    assert differing(right, wrong) == {section}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("10.0.0.1:8470", "pi1.example:9000"),
        ('address = "10.0.0.1:8470"', ""),
        ("# gamma = 1.0", "gamma = 1"),
        ("# discovery = false", "discovery = true"),
        ("rounds = 40", "# rounds = 40"),
        ("# momentum = 0.0", "momentum = 0"),
        ('topology = "ring"', 'topology = "complete"'),
        ("\n[gossip]", "\n# a comment\n[gossip]"),
        ('# share = "*"', 'share = ["*"]'),
        ('# schedule = "constant"', 'schedule = "constant"\nkeep_optimizer = false'),
        ('compressor = "q4"', 'compressor = "q4"\nshare = "*"'),
        ("# The members", EDGE.format(spec="q4") + "# The members"),
    ],
)
def test_addresses_explicit_defaults_and_other_words_for_the_same_edges_change_nothing(differing, right, wrong):
    assert differing(right, wrong) == set()


def test_the_order_of_members_counts(valid_text, write, keys):
    swapped = valid_text
    for first, second in ((keys[0], keys[1]), ("pi0", "pi1")):
        swapped = swapped.replace(first, "?").replace(second, first).replace("?", second)
    one, other = (dict(sections(load_config(write(text)))) for text in (valid_text, swapped))
    assert one["node"] != other["node"]


def test_with_another_default_an_edge_that_keeps_the_old_one_counts(valid_text, write):
    """What travels on it is not what travels on the others any more."""
    other = valid_text.replace('compressor = "q4"', 'compressor = "q8"')
    plain, kept = (load_config(write(text)) for text in (other, other + EDGE.format(spec="q4")))
    assert dict(sections(plain))["edges"] != dict(sections(kept))["edges"]


def test_the_order_of_edge_tables_and_of_their_names_counts_for_nothing(valid_text, write):
    one, other = EDGE.format(spec="q8"), EDGE.format(spec="sign").replace("pi1", "pi2")
    turned = other.replace('"pi0", "pi2"', '"pi2", "pi0"')
    first, second = (load_config(write(valid_text + "\n" + text)) for text in (one + other, turned + one))
    assert federation_id(first) == federation_id(second)


def test_the_hashes_are_the_same_on_every_machine(valid_text, write):
    """A change here makes nodes of two versions refuse each other: raise the protocol version with it."""
    federation = load_config(write(valid_text))
    assert [name for name, _ in sections(federation)] == ["federation", "task", "training", "gossip", "node", "edges"]
    assert all(len(digest) == 32 for _, digest in sections(federation))
    assert federation_id(federation).hex() == "3477bde91445dca4664fe4490129ce17c2e3d69c2f5a9ffa10d366bf7dd644fd"
    by_key = b"".join(digest for _, digest in keys(federation))
    assert hashlib.blake2b(by_key, digest_size=8).hexdigest() == "ed233890270c2316"
