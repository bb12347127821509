"""The suite is shown to catch what it is there for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reference import planted_faults
from reference.faults import GROUPS


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_planted_fault_is_caught(group):
    # A process of its own, because it puts faulty copies in place of the library.
    run = subprocess.run(
        [sys.executable, planted_faults.__file__, group], capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "", run.stdout
