from graphgrad.report.table import table


def test_figures_stand_to_the_right():
    assert table(["op", "count"], [["add", "1"], ["multiply", "12"]]).splitlines() == [
        "op        count",
        "--------  -----",
        "add           1",
        "multiply     12",
    ]


def test_chosen_columns_and_no_trailing_blanks():
    text = table(["op", "n", "where"], [["add", "1", "here"], ["mul", "2", ""]], right=[1])
    assert text.splitlines()[2:] == ["add  1  here", "mul  2"]


def test_no_rows():
    assert table(["a", "b"], []) == "a  b\n-  -"
