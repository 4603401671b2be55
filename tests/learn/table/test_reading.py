from __future__ import annotations

import numpy as np
import pytest

from p2pfl.errors import UserError
from p2pfl.learn.table import MistakesError, mistakes_of, say_what_is_odd

NAN = float("nan")
TABLE = """id,age,chol,cp,ward,num
a,63,233.5,1,North,0
b,67,-9,1.0,south,2
c,?,1e2,3,,1.0
"""


def columns(table):
    return {name: values.tolist() for name, values in table.columns.items()}


def same(table, expected):
    assert set(table.columns) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(table.columns[name], np.array(values, dtype=float), err_msg=name)


EXPECTED = {
    "age": [63, 67, NAN],
    "chol": [233.5, NAN, 100],
    "cp": [0, 0, 2],
    "ward": [0, 1, NAN],
    "num": [0, 1, 1],
}


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        (TABLE, {}),
        (TABLE.replace(",", ";"), {"separator": ";"}),
        (TABLE.replace(",", ";").replace("233.5", "233,5").replace("1.0", "1,0"), {"separator": ";", "decimal": ","}),
        (TABLE.replace(",", "\t").replace("\n", "\r\n\r\n"), {"separator": "\t"}),
        (TABLE.replace("age,chol", "Age (years), chol "), {"rename": {"age": "Age (years)"}}),
        (TABLE.replace("a,63", '"a, ""b""\n c",63'), {}),
        ("\ufeff" + TABLE, {}),
    ],
    ids=["usual", "semicolons", "decimal commas", "tabs, empty lines", "renamed", "quoted", "a mark"],
)
def test_cells_mean_the_same_however_the_file_is_written(read, text, layout):
    same(read(text, layout={"missing": {"chol": -9}} | layout), EXPECTED)


def test_a_missing_code_counts_by_value_and_in_its_column_alone(read):
    text = "age,chol,cp,ward,num\n-9.00,-9.0,1,south,0\n-99,n.d.,2,N.D.,1\n"
    found = read(text, layout={"missing": {"chol": [-9, "n.d."], "*": ["N.D.", -99]}})
    same(found, {"age": [-9, NAN], "chol": [NAN, NAN], "cp": [0, 1], "ward": [1, NAN], "num": [0, 1]})


def test_case_counts_unless_the_schema_says_otherwise(read):
    text = TABLE.replace("North", "NORTH").replace("south", "South")
    with pytest.raises(MistakesError, match="'NORTH'"):
        read(text, layout={"missing": {"chol": -9}})
    assert read(text, layout={"missing": {"chol": -9}}, ignore_case=True).columns["ward"][:2].tolist() == [0, 1]


def test_a_code_that_only_looks_like_a_number_keeps_its_spelling(read):
    text = "age,chol,cp,ward,num\n1,1,1,007,0\n1,1,1,1E5,0\n"
    assert read(text, categories={"cp": [1, 2], "ward": ["007", "1E5", "7"]}).columns["ward"].tolist() == [0, 1]


def test_an_absent_column_is_missing_in_every_row_and_said_so(read):
    table = read("age,cp,ward,num\n1,1,North,0\n2,2,south,1\n")
    assert np.isnan(table.columns["chol"]).all()
    assert table.absent == ("chol",)
    (text,) = say_what_is_odd(table, "zurich")
    assert "'chol'" in text
    assert "zurich" in text


def test_a_column_under_another_name_is_no_absent_one_unless_the_node_says_so(read):
    text = "age,Chol.,cp,ward,num\n1,200,1,North,0\n"
    for name in ("Chol.", "cholesterol"):
        with pytest.raises(MistakesError, match=rf"'{name}'.*rename.*absent"):
            read(text.replace("Chol.", name))
    assert np.isnan(read(text, layout={"absent": ["chol"]}).columns["chol"]).all()


def test_an_empty_file_is_called_so(read):
    with pytest.raises(UserError, match="line 1: the table has no header"):
        read("")


def test_what_is_not_declared_may_count_as_missing(read):
    text = TABLE.replace("North", "West") + "d,1,1,9,north pole,0\n"
    table = read(text, unseen="missing")
    np.testing.assert_array_equal(table.columns["ward"], [NAN, 1, NAN, NAN])
    assert table.unseen == 3
    assert "3 cells" in say_what_is_odd(table, "a")[0]


def test_rows_without_a_target_may_be_left_out(read):
    text = TABLE + "d,1,1,1,North,\n"
    with pytest.raises(MistakesError, match=r"line 5, column 'num'.*target is missing.*missing_target"):
        read(text)
    table = read(text, missing_target="drop")
    assert (len(table), table.without_target) == (3, 1)
    with pytest.raises(UserError, match="no row of the table has a target"):
        read("age,chol,cp,ward,num\n1,1,1,North,NA\n", missing_target="drop")


def test_rows_to_score_need_no_target_and_may_have_new_values(read):
    table = read("age,chol,cp,ward\n1,2,7,North\n", scoring=True)
    same(table, {"age": [1], "chol": [2], "cp": [NAN], "ward": [0], "num": [NAN]})


def test_every_mistake_is_named_once_with_its_lines(read):
    bad = "age,chol,cp,ward,num\n" + "old,1,1,North,0\n" * 5 + "1,2021-03-04,1,North,x\n1,1,9\n1,inf,9,North,0\n"
    with pytest.raises(MistakesError) as caught:
        read(bad)
    texts = [str(mistake) for mistake in mistakes_of(caught.value)]
    assert len(texts) == 6
    assert all("site.csv" in text for text in texts)
    for parts in (
        ["line 8", "number of cells", "found 3", "5 cells"],
        ["lines 2, 3, 4 and 2 more", "'age'", "'old'", "finite number"],
        ["line 7", "'chol'", "a date", "days since"],
        ["line 7", "'num'", "'x'", "another number"],
        ["line 9", "'chol'", "'inf'"],
        ["line 9", "'cp'", "'9'", "1, 2, 3"],
    ):
        assert any(all(part in text for part in parts) for text in texts), parts
    assert "5 other mistakes" in str(caught.value)


@pytest.mark.parametrize("junk", ["", "\0\1\2", "\n\n", "age\n", "x,y\n1,2\n", '"', "age,chol,cp,ward,num\n"])
def test_junk_is_refused_with_one_error(read, junk):
    with pytest.raises(UserError, match=r"site\.csv"):
        read(junk)


def test_another_encoding_can_be_told(read):
    text = "age,chol,cp,ward,num\n1,1,1,Süd,0\n"
    with pytest.raises(UserError, match="encoding"):
        read(text, encoding="latin-1")
    wards = {"cp": [1, 2], "ward": ["Nord", "Süd"]}
    assert read(text, encoding="latin-1", layout={"encoding": "latin-1"}, categories=wards).columns["ward"] == [1]


@pytest.mark.parametrize(
    ("layout", "key"),
    [
        ({"separator": ";;"}, "data.separator"),
        ({"decimal": "x"}, "data.decimal"),
        ({"decimal": ","}, "data.decimal"),
        ({"encoding": "klingon"}, "data.encoding"),
        ({"encoding": "hex"}, "data.encoding"),
        ({"header": False}, "data.header"),
        ({"missing": {"a": [True]}}, "data.missing"),
        ({"rename": ["a"]}, "data.rename"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(read, layout, key):
    with pytest.raises(UserError) as caught:
        read(TABLE, layout=layout)
    assert caught.value.key == key
