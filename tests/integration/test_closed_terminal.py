"""A terminal that is closed in the middle of the work, as when a connection breaks: every round is saved."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time

from command_line import COMMAND, ENVIRONMENT, fedlada, rows

QUICK = ["--model", "mlp", "--local-steps", "2", "--num-clients", "8", "--cohort-size", "2"]
NEVER = ["--checkpoint-every", "100000"]
"""A checkpoint is then one that was written at the end."""
PATIENCE = 120


def until_the_terminal_is_closed(words, started, log=None):
    """Runs a command in a session of its own and closes its terminal when all these files have a line; its status.

    With a log the command is as under nohup: deaf to the hang-up, its output in a file.
    """
    process, terminal = pty.fork()
    if process == 0:
        # The tests themselves may run under nohup, which is inherited.
        signal.signal(signal.SIGHUP, signal.SIG_DFL if log is None else signal.SIG_IGN)
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, 1)
            os.dup2(file, 2)
        os.execvpe(COMMAND[0], [*COMMAND, *map(str, words)], {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "120"})
    end = time.monotonic() + PATIENCE
    while not all(path.exists() and path.read_text().count("\n") for path in started):
        assert time.monotonic() < end, "it has not begun"
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 65536)
    os.close(terminal)
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return status
        select.select([], [], [], 0.05)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError("it does not end")


def test_a_run_saves_its_last_round(tmp_path):
    folder = tmp_path / "r"
    words = ["run", *QUICK, *NEVER, "--rounds", 300, "--out", folder]
    status = until_the_terminal_is_closed(words, [folder / "metrics.jsonl"])
    assert os.WIFEXITED(status)
    assert os.WEXITSTATUS(status) == 130
    before = rows(folder)
    assert 1 <= len(before) < 300
    assert list((folder / "checkpoints").iterdir())
    fedlada("resume", folder, "--quiet")
    fedlada("run", *QUICK, "--rounds", 300, "--out", tmp_path / "whole", "--quiet")
    assert rows(folder) == rows(tmp_path / "whole")


def test_several_runs_at_a_time_save_theirs(tmp_path):
    words = ["compare", *QUICK, *NEVER, "--methods", "fedavg,fedcm", "--seeds", 0, "--rounds", 3000]
    words += ["--jobs", 2, "--out", tmp_path]
    folders = [tmp_path / f"{name}-seed0" for name in ("fedavg", "fedcm")]
    status = until_the_terminal_is_closed(words, [folder / "metrics.jsonl" for folder in folders])
    assert os.WIFEXITED(status)
    assert os.WEXITSTATUS(status) == 130
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
    words = ["run", *QUICK, "--rounds", 200, "--out", folder]
    assert until_the_terminal_is_closed(words, [folder / "metrics.jsonl"], log) == 0
    assert len(rows(folder)) == 200
    assert "accuracy" in log.read_text()
