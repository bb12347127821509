"""The `fedlada` command as a user starts it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "fedlada"]
# One thread each: tests run side by side, and threads that fight over a core are many times slower.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def fedlada(*arguments, code=0, cwd=None, **environment):
    """Run a command to its end; its standard output. Fails if the exit code is another."""
    run = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
    )
    assert run.returncode == code, f"exit {run.returncode}: {run.stderr}"
    assert "Traceback" not in run.stderr, run.stderr
    return run


def rows(folder):
    """A run's metrics without the times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]
