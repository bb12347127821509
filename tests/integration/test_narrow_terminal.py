"""Tables in a terminal of 80 columns, which are often narrower than the table."""

from __future__ import annotations

import re

import pytest

from command_line import on_a_terminal

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def in_a_terminal(*words: str, columns: int) -> list[str]:
    """The lines that a command writes to a terminal so wide."""
    text = on_a_terminal(words, "out", COLUMNS=str(columns), TERM="xterm")
    return COLOURS.sub("", text).splitlines()


@pytest.mark.parametrize("columns", [80, 200])
def test_no_word_of_a_table_is_broken(columns):
    lines = in_a_terminal("methods", columns=columns)
    words = set(" ".join(lines).replace("│", " ").split())
    assert {"TowardGlobalDirection", "fedadam_amended", "bias_correction", "second_moment", "averaged,"} <= words
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= columns


def test_in_a_very_narrow_terminal_each_cell_has_a_line_of_its_own():
    lines = in_a_terminal("methods", columns=50)[:-2]  # behind the table are sentences
    assert max(map(len, lines)) <= 50
    assert "…" not in "".join(lines)
    assert {"TowardGlobalDirection", "fedadam_amended", "bias_correction"} <= set(" ".join(lines).split())
    assert [line.split() for line in lines].count(["method", "fedlada"]) == 1
