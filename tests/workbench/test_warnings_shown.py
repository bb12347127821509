"""What the command line says on standard error."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import warnings
from fedlada.workbench.words import show_warnings_as_lines
show_warnings_as_lines()
warnings.warn("the targets are 0 and 1")
warnings.warn("old", FutureWarning)
"""


def test_a_warning_is_a_line():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    first, second = run.stderr.splitlines()
    assert first == "fedlada: the targets are 0 and 1"
    assert second.endswith("FutureWarning: old")
