"""A run killed at any moment goes on to exactly the bits of a run that nobody killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import warm
from method_table import METHODS

RUNNER = Path(__file__).with_name("kill_runner.py")
KILLS_PER_METHOD = 5
PARTS = 2


def kill(*arguments):
    run = warm([str(one) for one in arguments], program=RUNNER)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("method", METHODS)
def test_kills_at_random_moments_lose_nothing(method, tmp_path):
    """At other moments for each method: what a run writes is alike."""
    report = kill("random", method, tmp_path, list(METHODS).index(method), KILLS_PER_METHOD)
    assert report["problems"] == []
    assert report["kills"] >= KILLS_PER_METHOD


@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_at_any_single_write_loses_nothing(part, tmp_path):
    """With SCAFFOLD, whose clients' memories are part of every checkpoint; in parts, which run side by side."""
    report = kill("every-write", "scaffold", tmp_path, part, PARTS)
    assert report["problems"] == []
    assert report["writes"] > 120
    assert report["kills"] > 40 / PARTS
