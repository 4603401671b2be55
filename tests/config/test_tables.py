"""The one reader of TOML files: whatever stands in one, it is read or refused, and soon."""

from __future__ import annotations

import ast
import os
import tomllib
import tracemalloc
from pathlib import Path

import pytest

from p2pfl.config import (
    MOST_GUESSES,
    NewMember,
    address,
    federation_mistakes,
    federation_text,
    load_config,
    read_document,
)
from p2pfl.config.tables import difflib
from p2pfl.errors import UserError
from p2pfl.limits import MOST_CHARACTERS, MOST_KEY_PARTS

ROOT = Path(__file__).parents[2]
DEEP = 100_000
"""As many parts as take tomllib minutes."""


def refusal_of(path):
    with pytest.raises(UserError) as refused:
        read_document(path)
    return refused.value


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * DEEP) + " = 1",
        f"[{'.'.join('a' * DEEP)}]",
        f"[[ {' . '.join('a' * DEEP)} ]]",
        "a = {" + ".".join("a" * DEEP) + " = 1}",
        '"a b"' + "\t.'c.d'" * DEEP + " = 1",
        r'"\"."' + r'."\"\\"' * DEEP + " = 1",
        '""' + ".''" * DEEP + " = 1",
        "a = 1\n" + ".".join("a" * (MOST_KEY_PARTS + 1)) + " = 1",
    ],
    ids=["key", "table", "list of tables", "inline", "quoted", "escaped", "empty", "one too many"],
)
def test_a_key_of_too_many_parts_is_refused_before_it_is_parsed(write, text, monkeypatch):
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("was parsed"))
    refused = refusal_of(write(text))
    assert "too many parts" in refused.message
    assert refused.allowed == f"at most {MOST_KEY_PARTS}"
    assert str(refused.file).endswith(f"federation.toml:{1 + text.count(chr(10))}")
    assert len(str(refused)) < 500


def test_a_key_of_as_many_parts_as_are_allowed_is_read(write):
    path = write(".".join("a" * MOST_KEY_PARTS) + " = 1\n# one. two. three.\nb = '192.168.1.11:8470 0.1.2'\n")
    assert set(read_document(path)) == {"a", "b"}


@pytest.mark.parametrize("key", ["nodes", "seed", "between"])
def test_a_number_that_python_refuses_to_write_out_is_a_mistake_like_any_other(write, key):
    """Also in a list: of hexadecimal digits there may be any number."""
    table = "[[edge]]" if key == "between" else "[federation]"
    found = federation_mistakes(write(f"{table}\n{key} = [0x{'f' * 5000}]\n").parent)
    assert any("too many digits" in str(mistake) for mistake in found)


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    ["a", "a ", "a.", "'", '"', r"\"", r'"\\', '"a', "'a'", "a.b ", '"".', "[", "{a=", "a=[", ".", " "],
    ids=repr,
)
def test_no_pattern_repeated_keeps_the_reader_busy(write, piece):
    """Where the search for long keys began anew at each character, some of these took minutes."""
    with pytest.raises(UserError):
        read_document(write(piece * (1_000_000 // len(piece)) + "!"))


@pytest.mark.parametrize(("size", "most"), [(MOST_CHARACTERS + 1, "2,097,152"), (100_000_000, "8,388,608 bytes")])
def test_of_a_file_that_is_far_too_large_little_is_read(write, size, most, monkeypatch):
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("was parsed"))
    path = write("")
    os.truncate(path, size)
    tracemalloc.start()
    try:
        refused = refusal_of(path)
        assert "too large" in refused.message
        assert most in refused.allowed
        assert tracemalloc.get_traced_memory()[1] < 5 * MOST_CHARACTERS
    finally:
        tracemalloc.stop()


def test_ten_thousand_members_fit(write):
    members = [
        NewMember(
            name=f"hospital-{i:05}-radiology-ward",
            key="A" * 43,
            address=f"node{i:05}.radiology.hospital.example.org:8470",
        )
        for i in range(10_000)
    ]
    text = federation_text(name="large", topology="ring", task="digits", members=members)
    assert len(read_document(write(text))["node"]) == 10_000


@pytest.mark.timeout(60)
def test_a_close_word_is_looked_for_only_for_the_first_unknown_keys(valid_text, write, monkeypatch):
    asked = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda word, *_, **__: asked.append(word) or [])
    keys = "\n".join(f"key{number} = 1" for number in range(3000))
    with pytest.raises(UserError):
        load_config(write(f"{keys}\n{valid_text}"))
    assert len(asked) == MOST_GUESSES


def test_no_other_place_parses_toml():
    """It would have no bounds."""
    found = {
        str(path.relative_to(ROOT))
        for package in ("p2pfl", "sim", "topologies")
        for path in sorted((ROOT / package).rglob("*.py"))
        if "toml" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Import) and any(name.name.startswith("toml") for name in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toml"))
    }
    assert found == {"p2pfl/config/tables.py"}


@pytest.mark.parametrize("text", ["pi9..lan:8470", f"{'a' * 64}.lan:8470", "[fe80::1%1]:8470", "[1.2.3.4]:8470"])
def test_an_address_that_no_node_could_dial_is_none(text):
    """Else it would pass into a charter, and stop who is to dial it."""
    with pytest.raises(ValueError):
        address(1).read(text)
