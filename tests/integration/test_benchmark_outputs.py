"""Benchmarks make the place for their figures before they measure: hours of work are not lost for want of a folder."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NOWHERE = ["--data-dir", "nowhere"]


@pytest.mark.parametrize(
    ("script", "words", "flag"),
    [
        ("gpu/speed.py", ["--only", "nothing"], "--out"),
        ("gpu/precision.py", NOWHERE, "--out"),
        ("gpu/authors_accuracy.py", ["--only", "ours", *NOWHERE], "--out"),
        ("messages.py", ["tune", "--dataset", "fashion-mnist", *NOWHERE], "--out"),
        ("datasets.py", NOWHERE, "--out"),
        ("tune_digits.py", ["--methods", "none"], "--out"),
        ("flower_memory.py", ["--inside", "none"], "--out"),
        ("simulators/compare.py", ["--envs-dir", __file__], "--output"),
        ("many_clients.py", ["--clients", "0"], "--out"),
    ],
)
def test_the_place_is_made_before_anything_is_measured(tmp_path, monkeypatch, script, words, flag):
    """Each has something to fail at where its measurement begins."""
    out = tmp_path / "new" / "figures"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *words, flag, str(out)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # one of them sets it
    monkeypatch.syspath_prepend(str((BENCHMARKS / script).parent))
    with pytest.raises(Exception, match=r"."):
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    assert (out if script == "gpu/speed.py" else out.parent).is_dir()
