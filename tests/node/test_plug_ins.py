"""Features of the user's own: a federation file names them, each node has them, and what is wrong is said at once."""

from __future__ import annotations

import pytest

from p2pfl import Federation, UserError
from p2pfl.config.charter import federation_id, keys
from p2pfl.config.load import federation_mistakes, load_config, load_node
from p2pfl.features import FEATURES
from p2pfl.node.application import Application
from p2pfl.node.assembly import read_setup
from p2pfl.node.feature import all_features

CODE = """
from msgspec import Struct
from p2pfl.node.feature import Attached, Feature

class Section(Struct):
    most: int = 3
    words: list[str] = []

class Seen(Feature):
    name = "seen"
    section = Section

    def attach(self, node):
        class There(Attached):
            def status(self):
                return {"most": node.options.most}
        return There()

class Bare(Feature):
    name = "bare"

class Asks(Feature):
    name = "asks"
    needs = ("nobody",)

class Broken(Feature):
    name = "broken"
    def __init__(self):
        raise RuntimeError("no such device")

class Page(Feature):
    name = "status"

class Leaves(Feature):
    name = "leaves"
    def attach(self, node):
        raise SystemExit(3)

something = 7
"""


@pytest.fixture
def ward(tmp_path):
    """A saved federation of two whose file has these tables, too."""

    def ward(text, name="ward"):
        folder = Federation(nodes=2, topology="path", rounds=3).save(tmp_path / name)
        (folder / "own.py").write_text(CODE, encoding="utf-8")
        file = folder / "federation.toml"
        file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")
        return folder

    return ward


async def started(folder):
    federation = load_config(folder)
    setup = read_setup(federation, load_node(folder / "node0", federation))
    return await Application(setup, on_line=print, features=FEATURES).run()


def features_of(folder):
    federation = load_config(folder)
    return all_features(federation, FEATURES)


def test_they_come_after_those_that_there_are_and_their_tables_are_read(ward):
    folder = ward('[features]\nseen = "own.py:Seen"\nbare = "own.py:Bare"\n\n[seen]\nmost = 5\n')
    assert [one.name for one in features_of(folder)] == [*(one.name for one in FEATURES), "seen", "bare"]
    assert [(one.name, one.options) for one in load_config(folder).plug_ins] == [("seen", {"most": 5}), ("bare", {})]


def test_sessions_compare_their_names_and_options_and_not_where_they_stand(ward):
    """Without any the identity is what it was."""
    none, some, other, moved = (
        load_config(ward(text, f"ward{place}"))
        for place, text in enumerate(
            (
                "",
                '[features]\nseen = "own.py:Seen"\n[seen]\nmost = 5\n',
                '[features]\nseen = "own.py:Seen"\n[seen]\nmost = 6\n',
                '[features]\nseen = "pack.age:Seen"\n[seen]\nmost = 5\n',
            )
        )
    )
    told = [dict(keys(one)).get("features.seen") for one in (none, some, other, moved)]
    assert told[0] is None
    assert told[1] == told[3] != told[2]
    assert len({federation_id(one) for one in (none, some, other)}) == 3


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("[seen]\nmost = 3\n", "seen", "unknown key"),
        ("features = 7\n", None, None),
        ("[features]\nseen = 7\n", "features.seen", ""),
        ('[features]\ngossip = "own.py:Seen"\n', "features.gossip", "not a feature name"),
        ('[features]\n"a b" = "own.py:Seen"\n', "features.a b", "not a feature name"),
    ],
)
def test_what_the_file_alone_shows_is_a_mistake_of_the_file(ward, text, key, says):
    if key is None:
        folder = ward("")
        file = folder / "federation.toml"
        file.write_text(text + file.read_text(encoding="utf-8"), encoding="utf-8")
        key, says = "features", "must be a table"
    else:
        folder = ward(text)
    (mistake,) = federation_mistakes(folder)
    assert mistake.key == key
    assert says in mistake.message


@pytest.mark.parametrize(
    ("table", "key", "says"),
    [
        ('seen = "own.py:Nobody"', "features.seen", "has no 'Nobody'"),
        ('seen = "nowhere.py:Seen"', "features.seen", "there is no file"),
        ('seen = "no.such.module:Seen"', "features.seen", "there is no module"),
        ('seen = "own.py:something"', "features.seen", "is not a feature"),
        ('seen = "own.py:Bare"', "features.seen", "calls itself 'bare'"),
        ('status = "own.py:Page"', "features.status", "already a feature of that name"),
        ('asks = "own.py:Asks"', "features.asks", "needs nobody, which is not there"),
        ('broken = "own.py:Broken"', "features.broken", "RuntimeError: no such device (own.py, line"),
        ('bare = "own.py:Bare"\n[bare]\nmost = 3', "bare.most", "unknown key"),
        ('seen = "own.py:Seen"\n[seen]\nmost = "many"', "seen.most", "Expected `int`, got `str`"),
        ('seen = "own.py:Seen"\n[seen]\nleast = 3', "seen.least", "unknown key"),
        ('seen = "own.py:Seen"\n[seen]\nwords = ["a", 7]', "seen.words[1]", "Expected `str`, got `int`"),
    ],
)
async def test_one_that_does_not_fit_is_one_clear_error_at_the_start(ward, table, key, says):
    folder = ward(f"[features]\n{table}\n")
    with pytest.raises(UserError) as caught:
        await started(folder)
    assert caught.value.key == key
    assert says in caught.value.message
    assert not (folder / "node0/state").exists()


async def test_one_that_would_end_the_process_stops_the_start(ward):
    folder = ward('[features]\nleaves = "own.py:Leaves"\n')
    with pytest.raises(UserError, match=r"the feature leaves failed at its start, in attach: SystemExit: 3"):
        await started(folder)
