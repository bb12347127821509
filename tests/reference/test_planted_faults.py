"""The suite is shown to catch what it is there for."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import warm
from reference.faults import GROUPS


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_planted_fault_is_caught(group):
    # A process of its own, because it puts faulty code in place of the library's.
    run = warm([group], program=Path(__file__).with_name("planted_faults.py"))
    assert run.returncode == 0, run.stderr
    assert run.stdout == "", run.stdout
