"""Settings for all tests."""

import gc
import os
import sys
from itertools import islice

# Before torch: threads that wait for work sleep. Tests run side by side, and threads that spin take their cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from hypothesis import HealthCheck, settings

# A shared machine can be slow for a moment, and that is not a failure.
settings.register_profile("fedlada", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedlada")

LONGEST = ("test_flower_processes", "test_planted_faults", "test_a_kill_at_any_single_write", "test_the_same_command")


def pytest_collection():
    """Before anything imports Triton: where there is no GPU its interpreter runs the kernels, step by step, on the CPU.

    Here and not above: the process that hands out the tests to others collects none and needs no torch.
    """
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    gc.disable()


def pytest_collection_finish():
    """What was imported and collected stays to the end: Python's collector need not go through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path, config):
    """Import no file to learn that it holds no tests and no examples, or slow tests alone: some of them import much."""
    if config.option.markexpr == "not slow" and collection_path.name == "integration":
        return True
    if collection_path.suffix == ".py" and not collection_path.name.startswith("test_"):
        return ">>>" not in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(items):
    """Slow tests first, the longest before all: begun last they would be waited for alone.

    Each process begins with an equal part of the list (`--dist worksteal`): every part begins with slow ones.
    """
    for item in items:
        if "integration" in item.path.parts:
            item.add_marker(pytest.mark.slow)
    slow = [item for item in items if "slow" in item.keywords]
    slow.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))
    files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in slow))}
    quick = (item for item in items if "slow" not in item.keywords)
    num_parts = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ordered = []
    for part in range(num_parts):
        # A file's tests stay together: they may share a fixture.
        ordered += [item for item in slow if files[item.path] % num_parts == part]
        ordered += islice(quick, max(0, (part + 1) * len(items) // num_parts - len(ordered)))
    items[:] = [*ordered, *quick]


@pytest.fixture
def only_new_objects():
    """Python's collector knows the objects of this test alone, and none that earlier tests left."""
    gc.collect()
    gc.freeze()


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
