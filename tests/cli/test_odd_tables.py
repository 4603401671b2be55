"""What `new` and `check` say of rows that cannot be read, of columns that name rows, of figures that leave a node."""

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


def test_rows_that_cannot_be_read_are_named_by_new_and_left_out_on_request(p2pfl, write, tmp_path, caplog):
    outcome = p2pfl(*write("P-x,1", "1,2,3"))
    assert outcome.code == 0, outcome.err
    assert sum(tomllib.loads((tmp_path / "h/schema.toml").read_text("utf-8"))["class_counts"].values()) == 120
    for said in (outcome.err, p2pfl("check", "h").err):
        assert "north.csv: line 62: the number of cells" in said
        assert 'on_bad_row = "drop" in [data]' in said
    with (tmp_path / "h/north/node.toml").open("a", encoding="utf-8") as file:
        file.write('on_bad_row = "drop"\n')
    outcome = p2pfl("check", "h", "--format", "json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["mistakes"]) == (0, [])
    assert sum("2 rows of 62 are left out" in text for text in report["warnings"]) == 1
    assert {row["node"]: row["rows_dropped"] for row in report["tables"]} == {"north": 2, "south": 0}
    assert "2 rows of 62 are left out" in caplog.text


CODES = np.random.default_rng(1).permutation(60).tolist()
WIDE = np.random.default_rng(2).choice(10**6, 60, replace=False).tolist()


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("id", lambda n: n),
        ("id", lambda n: WIDE[n]),
        ("PatientID", lambda n: WIDE[n]),
        ("patient number", lambda n: f"{WIDE[n]}.0"),
        ("x", lambda n: CODES[n]),
        ("x", lambda n: 70_000 + CODES[n]),
        ("x", lambda n: f"AB-{WIDE[n]}"),
    ],
)
def test_a_column_that_names_rows_is_no_input(p2pfl, write, tmp_path, name, ids):
    outcome = p2pfl(*write(name=name, ids=ids))
    assert outcome.code == 0, outcome.err
    assert f"{name}: left out: names the rows" in outcome.err
    schema = tomllib.loads((tmp_path / "h/schema.toml").read_text(encoding="utf-8"))
    assert schema["numeric"] == ["age", "chol"]


@pytest.mark.parametrize(
    "column",
    [
        ("x", lambda n: n % 59),
        ("x", lambda n: 1.5 * n),
        ("humid", lambda n: WIDE[n]),
        ("id", lambda n: n % 59),
        ("id", lambda n: WIDE[n] + 0.25),
    ],
)
def test_a_measurement_stays_although_all_its_values_differ(p2pfl, write, tmp_path, column):
    name, ids = column
    outcome = p2pfl(*write(name=name, ids=ids))
    assert outcome.code == 0, outcome.err
    schema = tomllib.loads((tmp_path / "h/schema.toml").read_text(encoding="utf-8"))
    assert schema["numeric"] == [name, "age", "chol"]


def test_columns_taken_out_of_numeric_by_hand_are_told_at_once_with_the_lines_to_delete(p2pfl, write, tmp_path):
    assert p2pfl(*write()).code == 0
    file = tmp_path / "h/schema.toml"
    text = file.read_text(encoding="utf-8")
    means = tomllib.loads(text)["means"]
    kept = [line for line in text.splitlines() if not line.startswith('  "chol",')]
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    outcome = p2pfl("check", "h")
    assert outcome.code == 2
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("error")]
    for part in ("schema.toml", f'delete the line "chol" = {means["chol"]} in [means]', "in [stds]"):
        assert part in line


def test_all_mistakes_of_a_schema_are_told_at_once(p2pfl, write, tmp_path):
    assert p2pfl(*write()).code == 0
    file = tmp_path / "h/schema.toml"
    text = file.read_text(encoding="utf-8")
    for name in ("age", "chol"):
        text = text.replace(f'  "{name}",', "")
    text = text.replace("classes = [", 'classes = ["x", ').replace("[class_counts]", "[class_counts]\nhalf = 3")
    file.write_text(text, encoding="utf-8")
    outcome = p2pfl("check", "h")
    errors = [line for line in outcome.err.splitlines() if line.startswith("error")]
    assert (outcome.code, len(errors)) == (2, 3)
    for part in ("'age'", "'chol'", "'half'"):
        assert sum(part in line for line in errors) == 1
    assert p2pfl("run", "h", "--node", "north").code == 2


PRIVATE = "\n[privacy]\nepsilon = 8.0\ndelta = 1e-3\n"


@pytest.mark.long
def test_check_names_what_the_schema_tells_of_private_rows(p2pfl, write, tmp_path):
    pytest.importorskip("opacus")
    outcome = p2pfl(*write())
    assert "exact figures of rows" in outcome.err
    file = tmp_path / "h/federation.toml"
    said = [text for text in json.loads(p2pfl("check", "h", "--format", "json").out)["warnings"] if "noise" in text]
    assert not said, "nothing is promised"
    file.write_text(file.read_text(encoding="utf-8").replace("holdout = 0.2", "holdout = 0.0") + PRIVATE, "utf-8")
    outcome = p2pfl("check", "h", "--format", "json")
    assert outcome.code == 0, outcome.err
    (text,) = [text for text in json.loads(outcome.out)["warnings"] if "without noise" in text]
    for part in ("schema.toml", "means, stds, class_counts, categories.ward", "epsilon does not cover"):
        assert part in text
    schema = tmp_path / "h/schema.toml"
    head, _, _ = schema.read_text(encoding="utf-8").partition("[categories]")
    schema.write_text(head, encoding="utf-8")
    said = json.loads(p2pfl("check", "h", "--format", "json").out)["warnings"]
    assert not any("without noise" in text for text in said)


@pytest.mark.long
def test_a_private_schema_within_the_federation_file_is_named_too(p2pfl, write, tmp_path):
    pytest.importorskip("opacus")
    assert p2pfl(*write()).code == 0
    file = tmp_path / "h/federation.toml"
    keys = 'target = "num"\nclasses = [0, 1]\nnumeric = ["age"]\nmeans = { age = 50.0 }\nstds = { age = 5.0 }'
    text = file.read_text(encoding="utf-8").replace('schema = "schema.toml"', keys)
    file.write_text(text.replace("holdout = 0.2", "holdout = 0.0") + PRIVATE, "utf-8")
    said = json.loads(p2pfl("check", "h", "--format", "json").out)["warnings"]
    (text,) = [text for text in said if "without noise" in text]
    assert "federation.toml" in text
    assert "task.means, task.stds" in text


def test_options_about_tables_go_with_tables_alone(p2pfl):
    outcome = p2pfl("new", "h", "--positive", "1")
    assert outcome.code == 2
    assert "--task csv" in outcome.err
