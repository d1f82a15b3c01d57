import io
import sys

from rich.bar import Bar

from graphgrad.report.table import plain, show, table


def test_figures_stand_to_the_right():
    assert plain(table(["op", "count"], [["add", "1"], ["multiply", "12"]])).splitlines() == [
        "op        count",
        "--------- -----",
        "add           1",
        "multiply     12",
    ]


def test_chosen_columns_and_no_trailing_blanks():
    text = plain(table(["op", "n", "where"], [["add", "1", "here"], ["mul", "2", ""]], right=[1]))
    assert text.splitlines()[2:] == ["add  1  here", "mul  2"]


def test_no_rows():
    assert plain(table(["a", "b"], [])).split() == ["a", "b", "--", "-"]


def test_names_are_not_taken_for_markup():
    name = "[bold]layer[0] :smile: " + "x" * 300
    assert name in plain(table(["of"], [[name]]), "[red]below")
    assert plain("[red]below") == "[red]below"


def test_bars():
    assert plain(table(["a"], [[Bar(2, 0, 1, width=4)]])).splitlines()[-1] == "██"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_its_width_and_colors(monkeypatch):
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    rows = table(["op", "where"], [["missing", "x" * 100]])
    for stream, is_terminal in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        show(rows, "below")
        text = stream.getvalue()
        assert ("\x1b[" in text) == is_terminal and ("x" * 100 in text) != is_terminal
        assert text.endswith("below\n")
