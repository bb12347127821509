"""A run killed at any moment goes on to exactly the bits of a run that nobody killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import ENVIRONMENT
from method_table import METHODS

RUNNER = Path(__file__).with_name("kill_runner.py")
KILLS_PER_METHOD = 13


def kill(*arguments):
    run = subprocess.run(
        [sys.executable, str(RUNNER), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=ENVIRONMENT,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("method", METHODS)
def test_kills_at_random_moments_lose_nothing(method, tmp_path):
    report = kill("random", method, tmp_path, 0, KILLS_PER_METHOD)
    assert report["problems"] == []
    assert report["kills"] >= KILLS_PER_METHOD


def test_a_kill_at_any_single_write_loses_nothing(tmp_path):
    """With SCAFFOLD, whose clients' memories are part of every checkpoint."""
    report = kill("every-write", "scaffold", tmp_path)
    assert report["problems"] == []
    assert report["kills"] > 60
