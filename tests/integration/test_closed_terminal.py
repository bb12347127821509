"""A terminal that is closed in the middle of the work, as when a connection breaks: every round is saved."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys

from command_line import ENVIRONMENT, fedlada, rows, running, wait_until
from held_run import hold, let_go

QUICK = ["--model", "mlp", "--local-steps", "2", "--num-clients", "8", "--cohort-size", "2"]
NEVER = ["--checkpoint-every", "100000"]
"""A checkpoint is then one that was written at the end."""


def until_the_terminal_is_closed(words, started, log=None, cwd=None):
    """Runs a command in a session of its own and closes its terminal when all these files have a line; its exit code.

    With a log the command is as under nohup: deaf to the hang-up, its output in a file. A run that is held in its
    folder is let go when the terminal is closed.
    """
    ours, theirs = pty.openpty()
    terminal = os.ttyname(theirs)
    places = {"in": terminal, "out": log or terminal, "err": log or terminal}
    options = {"environment": {"TERM": "xterm", "COLUMNS": "120"}, "ignored": [signal.SIGHUP] if log else []}
    with running(words, cwd=cwd, session=True, **places, **options) as process:

        def has_begun():
            while select.select([ours], [], [], 0)[0]:
                os.read(ours, 65536)
            return all(path.exists() and path.read_text().count("\n") for path in started)

        wait_until(has_begun, process)
        os.close(theirs)
        os.close(ours)
        if cwd is not None:
            let_go(cwd)
        return process.wait()


def test_a_run_saves_its_last_round(tmp_path):
    folder = tmp_path / "r"
    words = ["run", *hold(tmp_path), *NEVER, "--rounds", 8]
    assert until_the_terminal_is_closed([*words, "--out", folder], [folder / "metrics.jsonl"], cwd=tmp_path) == 130
    before = rows(folder)
    assert 1 <= len(before) < 8
    assert list((folder / "checkpoints").iterdir())
    fedlada("resume", folder, "--trust", "--quiet", cwd=tmp_path)
    fedlada(*words, "--out", tmp_path / "whole", "--quiet", cwd=tmp_path)
    assert rows(folder) == rows(tmp_path / "whole")


def test_several_runs_at_a_time_save_theirs(tmp_path):
    words = ["compare", *QUICK, *NEVER, "--methods", "fedavg,fedcm", "--seeds", 0, "--rounds", 3000]
    words += ["--jobs", 2, "--out", tmp_path]
    folders = [tmp_path / f"{name}-seed0" for name in ("fedavg", "fedcm")]
    assert until_the_terminal_is_closed(words, [folder / "metrics.jsonl" for folder in folders]) == 130
    for folder in folders:
        assert 1 <= len(rows(folder)) < 3000
        assert list((folder / "checkpoints").iterdir())


COUNTING = """
import os, signal, sys
from fedlada.workbench.ending import when_asked_to_end
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # else as the tests have it, which may run under nohup
heard = []
with when_asked_to_end(lambda number, frame: heard.append(number)):
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
        os.kill(os.getpid(), number)
again = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
sys.exit(0 if again and heard == [signal.SIGHUP, signal.SIGTERM, signal.SIGTERM] else 1)
"""


def test_a_shell_that_passes_the_hang_up_on_is_not_a_second_wish():
    """The second Ctrl-C ends a run at once; a closed terminal tells its programs, and so does their shell."""
    assert subprocess.run([sys.executable, "-c", COUNTING], check=False, env=ENVIRONMENT).returncode == 0


def test_nohup_goes_on(tmp_path):
    folder, log = tmp_path / "r", tmp_path / "log"
    words = ["run", *hold(tmp_path), "--rounds", 8, "--out", folder]
    assert until_the_terminal_is_closed(words, [folder / "metrics.jsonl"], log, cwd=tmp_path) == 0
    assert len(rows(folder)) == 8
    assert "accuracy" in log.read_text()
