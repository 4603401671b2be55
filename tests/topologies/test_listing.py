"""`topology list`: complete in every format, and readable in a hundred columns."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from topologies import TopologyError
from topologies.cli import topology
from topologies.cli.info import GROUPS
from topologies.families import FAMILIES, parse


def listed(*arguments):
    result = CliRunner().invoke(topology, ["list", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_page_fits_a_hundred_columns_without_colors_or_trailing_spaces_in_a_pipe():
    lines = listed().splitlines()
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in listed()
    assert all(line == line.rstrip() for line in lines)


def test_the_page_shows_every_family_once_under_what_a_federation_can_run():
    page = listed()
    for kind, title in GROUPS.items():
        group = page.partition(title)[2].split("\n\n")[1]
        specs = [parse(line.split()[0]).name for line in group.splitlines() if line[:1].isalpha()]
        assert specs == [name for name, family in FAMILIES.items() if family.kind.value == kind]


def test_one_family_is_told_with_its_source():
    assert all(family.source in listed(name) for name, family in FAMILIES.items())


@pytest.mark.parametrize("form", ["json", "csv"])
def test_every_fact_about_every_family_is_in_the_data(form):
    text = listed("--format", form)
    rows = json.loads(text) if form == "json" else list(csv.DictReader(io.StringIO(text)))
    assert [row["name"] for row in rows] == list(FAMILIES)
    for row, family in zip(rows, FAMILIES.values(), strict=True):
        assert (row["rule"], row["degree"], row["source"]) == (family.rule, family.degree, family.source)
        assert row["algebraic_connectivity"] == family.connectivity
        assert row["live"] in ({True, "yes"} if family.kind.value != "directed" else {False, "no"})
        assert all(key in row["parameters"] for key in family.parameters)


def test_every_spec_that_is_shown_can_be_typed():
    for row in json.loads(listed("--format", "json")):
        assert parse(row["spec"]).name == row["name"]


def test_every_family_has_a_rule_a_degree_and_a_source_and_random_parameters_a_meaning():
    for row in json.loads(listed("--format", "json")):
        assert row["rule"]
        assert row["degree"]
        assert row["source"]


def test_one_family_is_told_in_full_with_what_its_parameters_mean_and_allow():
    page = listed("torus")
    assert "parameter dims" in page
    assert "such as 4x5x6" in page
    assert "live                    yes" in page
    assert json.loads(listed("torus", "--format", "json"))["allowed"]["rows"] == "a whole number from 2 to 1000000000"


def test_an_unknown_family_is_refused_with_the_nearest():
    with pytest.raises(TopologyError, match="did you mean 'torus'"):
        listed("toruss")
