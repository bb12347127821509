"""Settings for all tests."""

import os
import sys

# Before torch: threads that wait for work sleep. Tests run side by side, and threads that spin take their cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import HealthCheck, settings

# A shared machine can be slow for a moment, and that is not a failure.
settings.register_profile("fedlada", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedlada")

# Before anything imports Triton: where there is no GPU its interpreter runs the kernels, step by step, on the CPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items):
    """Slow tests first, the longest before all: begun last it would be waited for alone."""
    for item in items:
        if "integration" in item.path.parts:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: ("test_flower_processes" not in item.nodeid, item.get_closest_marker("slow") is None))


@pytest.fixture
def command(monkeypatch, capsys):
    """`fedlada` in this process; what it wrote to standard output and error."""
    from fedlada.workbench.cli import main  # after Triton's variable was set

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["fedlada", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        captured = capsys.readouterr()
        assert exit.value.code == code, captured.err
        return captured

    return run
