"""What `new` and `check` say of rows that are none, of columns that name rows, and of figures that leave a node."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest

SITES = ("north", "south")


@pytest.fixture
def write(tmp_path):
    """Write the tables of two sites: `extra` are lines to append to that of north."""

    def act(*extra, name="patient", ids=lambda n: f"P-{n:04}"):
        rng = np.random.default_rng(0)
        for site in SITES:
            lines = [f"{name},age,chol,ward,num"]
            for n in range(60):
                ill = n % 3 == 0
                age, chol = rng.normal(50 + 10 * ill, 5), rng.normal(200, 20)
                lines.append(f"{ids(n)},{age:.3f},{chol:.2f},{'ab'[n % 2]},{int(ill)}")
            lines += extra if site == "north" else ()
            (tmp_path / f"{site}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return ["new", "h", "--task", "csv", "north.csv", "south.csv", "--target", "num"]

    return act


@pytest.mark.parametrize("junk", ["P-x,junk,junk,a,0", "1,2,3"])
def test_new_names_the_row_that_is_odd_and_makes_nothing(p2pfl, write, tmp_path, junk):
    outcome = p2pfl(*write(junk))
    assert outcome.code == 2
    assert "north.csv: line 62" in outcome.err
    assert "--on-bad-row drop" in outcome.err
    assert not (tmp_path / "h").exists()


def test_new_names_the_odd_rows_of_all_tables_at_once(p2pfl, write, tmp_path):
    command = write("P-x,junk,junk,a,0", *["1,2,3"] * 200)
    with (tmp_path / "south.csv").open("a", encoding="utf-8") as file:
        file.write("1\n")
    outcome = p2pfl(*command)
    assert outcome.code == 2
    for said in ("north.csv: line 62", "north.csv: lines 63, 64, 65 and 197 more", "south.csv: line 62"):
        assert said in outcome.err
    assert len(outcome.err.splitlines()) == 3


def test_a_row_left_out_is_told_by_new_by_check_and_in_the_nodes_log(p2pfl, write, tmp_path, caplog):
    outcome = p2pfl(*write("P-x,junk,junk,a,0", "1,2,3"), "--on-bad-row", "drop")
    assert outcome.code == 0, outcome.err
    assert "2 rows of 62 are left out" in outcome.err
    assert "lines 62, 63" in outcome.err
    schema = tomllib.loads((tmp_path / "h/schema.toml").read_text(encoding="utf-8"))
    assert "missing" not in schema
    assert 'on_bad_row = "drop"' in (tmp_path / "h/north/node.toml").read_text(encoding="utf-8")
    outcome = p2pfl("check", "h", "--format", "json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["mistakes"]) == (0, [])
    assert sum("2 rows of 62 are left out" in text for text in report["warnings"]) == 1
    assert {row["node"]: row["rows_dropped"] for row in report["tables"]} == {"north": 2, "south": 0}
    assert "2 rows of 62 are left out" in caplog.text
