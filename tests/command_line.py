"""The `fedlada` command as a user starts it: a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from click.testing import CliRunner

from fedlada.workbench.cli import fedlada as command_line

COMMAND = [sys.executable, "-m", "fedlada"]
# One thread each: tests run side by side, and threads that fight over a core are many times slower.
QUICK = ["--model", "mlp", "--local-steps", "2", "--num-clients", "8", "--cohort-size", "2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def fedlada(*arguments, code=0, cwd=None, **environment):
    """Run a command to its end; its standard output. Fails if the exit code is another.

    With variables that Python reads when it starts it is a new interpreter; else a fork of one that has imported
    everything, which is the same command without the seconds that takes.
    """
    words = [str(one) for one in arguments]
    if any(name.startswith("PYTHON") for name in environment):
        run = fresh(words, cwd=cwd, **environment)
    else:
        run = warm(words, cwd=cwd, environments=[environment])
    assert run.returncode == code, f"exit {run.returncode}: {run.stderr}"
    assert "Traceback" not in run.stderr, run.stderr
    return run


def fresh(words, *, cwd=None, **environment):
    """Run `fedlada` as a new interpreter."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
    )


def warm(words, *, program=None, cwd=None, environments=({},)):
    """Run `fedlada`, or another Python program, as a fork of the interpreter that has imported everything.

    With several environments it is as many processes at once. torch reads OMP_NUM_THREADS when it is imported: there is
    an interpreter for each number.
    """
    threads = environments[0].get("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        out, err = (str(Path(folder, name)) for name in ("out", "err"))
        code = _ask(threads, _request(words, out, err, program=program, cwd=cwd, environments=environments))
        # torch 2.8 writes to standard output that processes have met, in pieces.
        said = re.sub(r"^.*(\[Gloo\]|peer ranks).*\n\n?", "", Path(out).read_text(), flags=re.MULTILINE)
        return subprocess.CompletedProcess(words, code, said, Path(err).read_text())


def _request(words, out, err, *, program=None, cwd=None, environments=({},), session=False, **others):
    """What `warm_process.py` reads."""
    return {
        "program": program and str(program),
        "arguments": [str(word) for word in words],
        "cwd": str(cwd or Path.cwd()),
        "environments": [{**ENVIRONMENT, **own} for own in environments],
        "in": os.devnull,
        "out": str(out),
        "err": str(err),
        "session": session,
        "ignored": [],
        "background": False,
        **others,
    }


def _ask(threads, request):
    server = _server(threads)
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the process that starts commands has died"
    return json.loads(answer)


def several(num_processes, words, *, program=None):
    """Run as many processes as torchrun would start, without its own start; standard output, and it must succeed."""
    group = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(num_processes),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [{**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]
    run = warm([str(word) for word in words], program=program, environments=ranks)
    assert run.returncode == 0, run.stderr
    return run.stdout


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@cache
def _server(threads):
    program = Path(__file__).with_name("warm_process.py")
    server = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": threads},
    )
    atexit.register(server.stdin.close)  # it ends when nobody can ask any more
    return server


def run_shortened(lines, folder):
    """Run documented lines in their order, with fewer steps and rounds: what matters is that each is right."""
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if ">" in words:
            words = words[: words.index(">")]
        rounds = {"run": "6", "compare": "4", "resume": "8", "sweep": "9"}.get(words[0], "")
        fewer = {"--rounds": rounds} | ({"--seeds": "0"} if words[0] == "sweep" else {})
        words = [fewer.get(before, word) for before, word in zip(["", *words], words, strict=False)]
        added = [*QUICK, "--rounds", rounds]
        given = {*words, *(["--num-clients"] if "--data" in words else [])}  # a user's function names its clients
        quick = [one for pair in zip(added[::2], added[1::2], strict=True) for one in pair if pair[0] not in given]
        if words[0] in ("compare", "sweep"):
            quick += ["--jobs", "1"]
        in_this_process(*words, *(quick if words[0] in ("run", "compare", "sweep") else []), cwd=folder)


def in_this_process(*words, cwd):
    """A command without a new interpreter: what one checks of an example is that it is right."""
    assert Path.cwd() == cwd
    done = CliRunner().invoke(command_line, list(map(str, words)))
    assert done.exit_code == 0, done.output


class Running:
    """A `fedlada` command in the background."""

    def __init__(self, words, folder, environment, **options):
        self.out, self.err = Path(folder, "out"), Path(folder, "err")
        self.out.touch()
        self.err.touch()
        places = {"out": self.out, "err": self.err, **options}
        self.pid = _ask("1", _request(words, environments=[environment], background=True, **places))

    @property
    def stdout(self):
        return self.out.read_text()

    @property
    def stderr(self):
        return self.err.read_text()

    def poll(self):
        """The exit code, negative for a signal; None as long as it runs."""
        return _ask("1", {"poll": self.pid})

    def wait(self, seconds=120):
        wait_until(lambda: self.poll() is not None, seconds=seconds)
        return self.poll()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def running(words, *, environment=None, **options):
    """A command in the background, a fork like those of `warm`, that does not outlive its test.

    `session` gives it a session of its own, `in`, `out` and `err` are other files than its own, such as a terminal.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = Running(words, folder, environment or {}, **options)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def on_a_terminal(words, *streams, **environment):
    """Run a command with these of "out" and "err" at a terminal; what that received. It must succeed."""
    ours, theirs = pty.openpty()
    received = []

    def has_ended():
        ended = process.poll() is not None  # before the last look at what it wrote
        while select.select([ours], [], [], 0)[0]:
            received.append(os.read(ours, 65536))
        return ended

    with running(words, environment=environment, **dict.fromkeys(streams, os.ttyname(theirs))) as process:
        wait_until(has_ended)
        assert process.poll() == 0
    os.close(theirs)
    os.close(ours)
    return b"".join(received).decode()


def wait_until(condition, process=None, seconds=120):
    """Look until it holds, with pauses that leave the core to others; fail if the process ends or it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.01)


def num_rows(folder):
    """How many rounds are on disk. Of a line that is being written a reader can see the beginning."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def rows(folder):
    """A run's metrics without the times, of a run that nobody writes."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]
