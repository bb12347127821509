"""What a person at a terminal sees, in a real pseudo-terminal."""

from __future__ import annotations

import re

from command_line import on_a_terminal

QUICK = "--model mlp --local-steps 2 --num-clients 8 --cohort-size 2 --rounds 6"


def shown(*words):
    """The command's standard error as a terminal receives it, without colours and cursor movements."""
    text = on_a_terminal(words, "err", TERM="xterm-256color", COLUMNS="150")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_run_shows_a_bar_with_rounds_loss_accuracy_and_time_left(tmp_path):
    text = shown("run", *QUICK.split(), "--out", str(tmp_path / "r"))
    assert re.search(r"fedlada ━+ +6/6 training loss \d\.\d+, test loss \d\.\d+, test accuracy 0\.\d+ +0:00:00", text)


def test_compare_shows_one_bar_for_all(tmp_path):
    arguments = ["compare", "--methods", "fedavg,fedcm", "--seeds", "0,1", *QUICK.split(), "--out", str(tmp_path)]
    text = shown(*arguments)
    assert re.search(r"all rounds +━+ +24/24", text)
