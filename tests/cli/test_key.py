"""`p2pfl key` makes an identity once, and afterwards shows the same one."""

from __future__ import annotations

from p2pfl.crypto.identity import Identity, public_text


def test_the_first_call_makes_it_and_the_second_shows_it(p2pfl, tmp_path):
    made, shown = p2pfl("key", "node.key"), p2pfl("key", "node.key")
    public = public_text(Identity.load(tmp_path / "node.key").public)
    assert made.out == shown.out == f"{public}\n"
    assert "made node.key" in made.err
    assert shown.err == ""


def test_a_folder_stands_for_the_key_in_it(p2pfl, tmp_path):
    (tmp_path / "pi1").mkdir()
    assert p2pfl("key", "pi1").out == p2pfl("key", "pi1/node.key").out


def test_another_file_is_not_overwritten_and_not_quoted(p2pfl, tmp_path):
    (tmp_path / "node.key").write_text("a secret of another kind", encoding="utf-8")
    (tmp_path / "node.key").chmod(0o600)
    outcome = p2pfl("key", "node.key")
    assert outcome.code == 2
    assert "another kind" not in outcome.err
    assert (tmp_path / "node.key").read_text(encoding="utf-8") == "a secret of another kind"


def test_a_missing_folder_is_a_mistake(p2pfl):
    assert p2pfl("key", "none/node.key").code == 2
