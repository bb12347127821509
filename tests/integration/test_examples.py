"""Every example runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from command_line import ENVIRONMENT

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert run.returncode == 0, run.stderr
    assert "accuracy" in run.stdout


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= {"quickstart", "custom_method", "own_training_loop"}
