"""The suite is shown to catch what it is there for."""

from __future__ import annotations

import pytest

from command_line import warm
from reference import planted_faults
from reference.faults import GROUPS


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_every_planted_fault_is_caught(group):
    # A process of its own, because it puts faulty code in place of the library's.
    run = warm([group], program=planted_faults.__file__)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "", run.stdout
