"""Tables in a terminal of 80 columns, which are often narrower than the table."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest

from command_line import COMMAND, ENVIRONMENT

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def in_a_terminal(*words: str, columns: int) -> list[str]:
    """The lines that a command writes to a terminal so wide."""
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen([*COMMAND, *words], stdout=theirs, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        text = b"".join(_chunks(ours))
        os.close(ours)
        assert process.wait(timeout=120) == 0
    return COLOURS.sub("", text.decode()).splitlines()


def _chunks(descriptor: int):
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            return
        if not chunk:
            return
        yield chunk


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
