"""`share_addresses` in node.toml: what `check` says about it."""

from __future__ import annotations

import pytest

from p2pfl.cli.main import main
from p2pfl.config.load import load_config, load_node, node_mistakes
from p2pfl.features.relay.feature import RelayCheck
from p2pfl.node.feature import Inspected

URL = "ws://relay.example.org:8443/p2pfl"


@pytest.fixture
def found(tmp_path, monkeypatch):
    """What the findings are with a node file for the node `lab`."""
    monkeypatch.setattr("p2pfl.features.relay.feature.unknown_hosts", lambda _: set())

    def found(text, *options):
        with pytest.raises(SystemExit):
            main(["new", str(tmp_path / "ward"), "--nodes", "clinic,lab", "--task", "digits", *options])
        (tmp_path / "ward/lab/node.toml").write_text(text, encoding="utf-8")
        federation = load_config(tmp_path / "ward")
        assert not node_mistakes(tmp_path / "ward/lab", federation)
        here = {member.index: load_node(tmp_path / "ward" / member.name, federation) for member in federation.present}
        inspected = Inspected(federation=federation, mistakes=[], here=here)
        RelayCheck().of_files(inspected)
        return inspected

    return found


SHARES = '[node]\nlisten = "{}"\n[network]\nshare_addresses = true\nrelay_token = "../relay.token"\n'


def test_check_says_who_tells_its_addresses(found):
    inspected = found(SHARES.format("0.0.0.0:0"), "--relay", URL)
    assert inspected.brief == {"addresses": "told by lab to neighbors at a relay that tell theirs"}
    assert inspected.warnings == inspected.mistakes == []


def test_nobody_tells_them_without_the_key(found):
    inspected = found("", "--relay", URL)
    assert inspected.brief == {}
    assert not load_node(inspected.here[1].path.parent, inspected.federation).network.share_addresses


@pytest.mark.parametrize(
    ("listen", "options", "says"),
    [("0.0.0.0:0", (), "without relays"), ("127.0.0.1:8470", ("--relay", URL), "on its own machine only")],
)
def test_check_says_where_it_is_of_no_use(found, listen, options, says):
    (warning,) = found(SHARES.format(listen), *options).warnings
    assert warning.startswith("lab: share_addresses in [network] is of no use")
    assert says in warning


def test_anything_but_true_and_false_is_a_mistake(found, tmp_path):
    inspected = found(SHARES.format("0.0.0.0:0"), "--relay", URL)
    (tmp_path / "ward/lab/node.toml").write_text('[network]\nshare_addresses = "lan"\n', encoding="utf-8")
    (mistake,) = node_mistakes(tmp_path / "ward/lab", inspected.federation)
    assert "network.share_addresses" in str(mistake)
