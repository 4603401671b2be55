"""A bad row has a wrong length, or a cell that is not what its column holds; it is refused, or left out and counted."""

from __future__ import annotations

import pytest

from p2pfl.errors import UserError
from p2pfl.learn.table import MistakesError, mistakes_of, say_what_is_odd

HEAD = "id,age,chol,cp,ward,num\n"
GOOD = "a,63,233.5,1,North,0\nb,67,210,2,south,2\nc,?,100,3,,1\n"
DROP = {"on_bad_row": "drop"}


@pytest.mark.parametrize(
    "bad",
    [
        "x,63,233.5",
        "x,63,233.5,1,North,0,",
        "junk",
        "x,old,233.5,1,North,0",
        "x,63,2021-03-04,1,North,0",
        "x,63,1e999,1,North,0",
        "x,63,200,9,North,0",
        "x,63,200,1,West,0",
        "x,63,200,1,North,ill",
        "junk,junk,junk,junk,junk,junk",
        'x,63,200,1,"North"ern,0',
        'x,63,200,1,"No"rth,0',
        "x,old,200,1,North,",
        HEAD.strip(),
    ],
)
def test_a_bad_row_is_refused_by_its_line_or_left_out_and_counted(read, bad):
    text = HEAD + GOOD + bad + "\nd,40,180,1,south,0\n"
    with pytest.raises(UserError, match=r"site\.csv: line 5"):
        read(text)
    table = read(text, layout=DROP)
    assert table.columns["age"][[0, 1, 3]].tolist() == [63, 67, 40]
    assert (len(table), table.dropped.count, table.dropped.lines) == (4, 1, (5,))
    (said,) = say_what_is_odd(table, "north")
    assert "1 row of 5 is left out" in said
    assert "line 5" in said


def test_a_row_of_which_nearly_all_is_wrong_is_one_mistake_and_others_are_named_by_cell(read):
    text = HEAD + GOOD + "j,u,n,k,!,!\nd,old,180,1,south,0\nh,e,l,l,o,you\n"
    with pytest.raises(MistakesError) as caught:
        read(text)
    row, cell = map(str, mistakes_of(caught.value))
    for part in ("lines 5, 7", "5 of 5 cells", "column 'age'", "'u'", 'on_bad_row = "drop"'):
        assert part in row
    for part in ("line 6", "column 'age'", "'old'", "not a number"):
        assert part in cell


def test_a_missing_cell_makes_no_bad_row_and_a_missing_target_is_still_refused(read):
    gaps = HEAD + GOOD + "d,,NA,,?,0\n"
    assert len(read(gaps, layout=DROP)) == 4
    with pytest.raises(MistakesError, match="target is missing"):
        read(gaps + "e,1,1,1,North,\n", layout=DROP)
    table = read(gaps + "e,1,1,1,North,\nf,x,1,1,North,\n", layout=DROP, missing_target="drop")
    assert (len(table), table.without_target, table.dropped.count) == (4, 1, 1)


def test_where_every_row_is_bad_there_is_an_error_that_says_why(read):
    with pytest.raises(UserError, match=r"no row of the table can be read.*line 2, column 'age'.*'x'"):
        read(HEAD + "a,x,1,1,North,0\nb,y,1,1,North,0\n", layout=DROP)


def test_rows_to_score_are_never_left_out(read):
    with pytest.raises(MistakesError, match="line 3"):
        read("age,chol,cp,ward\n1,2,1,North\nx,2,1,North\n", layout=DROP, scoring=True)


def test_an_unknown_way_with_bad_rows_is_refused(read):
    with pytest.raises(UserError) as caught:
        read(HEAD + GOOD, layout={"on_bad_row": "skip"})
    assert (caught.value.key, caught.value.allowed) == ("data.on_bad_row", '"refuse" or "drop"')


def test_an_open_quote_is_named_where_it_begins(read):
    with pytest.raises(UserError, match="line 5: the table cannot be read"):
        read(HEAD + GOOD + 'd,1,1,1,"North,0\n' + "e,1,1,1,North,0\n" * 3)
