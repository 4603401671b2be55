"""A graph file with weights: nodes mix with these, agree that they do, and refuse what would drive models apart."""

from __future__ import annotations

import json

import pytest

from p2pfl.config import all_shares, edge_weights, federation_graph, federation_mistakes, keys, load_config, settings_of
from p2pfl.reporting import configuration, predicted
from topologies import TopologyError

WEIGHTS = {("pi0", "pi1"): 0.5, ("pi2", "pi1"): 0.25}


@pytest.fixture
def federation_file(tmp_path, valid_text, write):
    def make(weights, **changes):
        links = [{"source": a, "target": b, "weight": w} for (a, b), w in weights.items()]
        links = [{key: value for key, value in link.items() if value is not None} for link in links]
        nodes = [{"id": f"pi{i}"} for i in range(3)]
        (tmp_path / "net.json").write_text(json.dumps({"nodes": nodes, "edges": links}))
        text = valid_text.replace('"ring"', '"net.json"')
        for old, new in changes.items():
            text = text.replace(old, new)
        return write(text)

    return make


def test_the_weights_of_the_file_are_those_of_the_members_edges(federation_file):
    federation = load_config(federation_file(WEIGHTS))
    assert federation.edge_weights == {(0, 1): 0.5, (1, 2): 0.25}
    assert all_shares(federation)[1] == {0: 0.5, 2: 0.25}
    assert configuration(federation)["edge_weights"] == [[0, 1, 0.5], [1, 2, 0.25]]
    assert predicted(federation, None) == pytest.approx(0.25 + 0.1875**0.5)


def test_a_core_offers_its_samples_times_the_weight(federation_file):
    federation = load_config(federation_file(WEIGHTS))
    profile = settings_of(federation, hops=1, shares=all_shares(federation)[1]).profile
    facts = type("Facts", (), {"samples": 60.0, "degree": 2, "weight": 20.0})()
    assert (profile.weight_of(0, facts), profile.weight_of(2, facts), profile.weight_of(9, facts)) == (30.0, 15.0, 20.0)
    assert [profile.samples_behind(a, peer, facts) for peer, a in ((0, 30.0), (2, 15.0), (9, 20.0))] == [60.0] * 3
    robust = settings_of(load_config(federation_file(WEIGHTS, mean="median:b=1")), hops=1, shares={0: 0.5}).profile
    assert robust.weight_of(0, facts) == 20.0


def test_two_nodes_with_other_weights_are_not_of_one_federation(federation_file):
    found = [dict(keys(load_config(federation_file(w)))) for w in (WEIGHTS, dict.fromkeys(WEIGHTS, 0.5))]
    assert [key for key in found[0] if found[0][key] != found[1][key]] == ["edges"]


def test_weights_of_one_are_none(federation_file):
    plain, ones = (load_config(federation_file(dict.fromkeys(WEIGHTS, weight))) for weight in (None, 1))
    assert plain.edge_weights == ones.edge_weights == {}
    assert keys(plain) == keys(ones)


@pytest.mark.parametrize(
    ("weights", "said", "value"),
    [
        ((0.6, 0.25), "net.json: weights: that of the edge between pi0 and pi1 is too large", 0.6),
        (("NaN", 0.25), "edge 0: impossible weight", "NaN"),
        ((None, 0.25), "edge 0: an edge without a weight", None),
    ],
)
def test_what_is_no_weight_is_refused(federation_file, weights, said, value):
    (mistake,) = federation_mistakes(federation_file(dict(zip(WEIGHTS, weights, strict=True))))
    assert said in mistake.message
    assert (mistake.key, mistake.value) == ("federation.topology", value)


def test_weights_that_add_up_to_more_than_one_are_refused(tmp_path):
    (tmp_path / "star.edges").write_text("a b .4\na c .4\na d .2\n")
    assert edge_weights(federation_graph("star.edges", "abcd", 0, tmp_path)[0]) == {
        (0, 1): 0.4,
        (0, 2): 0.4,
        (0, 3): 0.2,
    }
    (tmp_path / "star.edges").write_text("a b .4\na c .4\na d .4\n")
    with pytest.raises(
        TopologyError, match=r"weights: those of a add up to more than 1 \(found 1\.2\); allowed: at most 1"
    ):
        federation_graph("star.edges", "abcd", 0, tmp_path)


def test_with_admin_keys_the_weights_are_not_used_and_a_notice_says_so(federation_file, keys):
    changes = {'name = "ward-7"': f'name = "ward-7"\nadmin = ["{keys[3]}"]'}
    federation = load_config(federation_file(WEIGHTS, **changes))
    assert federation.edge_weights == {}
    assert "weights in net.json are not used" in federation.notices[0]


def test_a_robust_rule_does_not_use_the_weights_either(federation_file):
    (notice,) = load_config(federation_file(WEIGHTS, mean="median:b=1")).notices
    assert "weights in net.json are not used: the degrees bound" in notice
    assert not load_config(federation_file(WEIGHTS)).notices
