"""Freed memory is kept while a CPU trains, and given back afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fedlada.engines import cpu_memory

pytestmark = [pytest.mark.slow, pytest.mark.skipif(cpu_memory._glibc() is None, reason="needs glibc")]

SCRIPT = """
import resource, sys, threading
import torch
from fedlada.engines.cpu_memory import freed_memory_kept

SIZE = 12 * 2**20  # 48 MiB

def count():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(SIZE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def faults():
    return [count() for _ in range(5)]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

where = torch.device(sys.argv[1])
found = {"before": faults()}
with freed_memory_kept(where):
    with freed_memory_kept(where):
        faults()
        found["inside"] = faults()
    found["after the inner one"] = faults()
    other = threading.Thread(target=lambda: found.update({"in a thread": faults()}))
    other.start(); other.join()
    many = [torch.ones(SIZE) for _ in range(8)]
    del many
    held = resident()
found["after"] = faults()
found["given back"] = held - resident()
print(found)
"""


def measured(device="cpu", **variables):
    known = {name: value for name, value in os.environ.items() if name not in cpu_memory.SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, device], env={**known, **variables}, capture_output=True, text=True, check=True
    )
    found = eval(done.stdout)
    if not min(found["before"]):
        pytest.skip("torch has an allocator of its own, which keeps freed memory, as its builds for ARM do")
    return found


def test_no_page_is_touched_for_the_first_time_again():
    """Or only once or twice: the C library may still choose a free block that was never in use."""
    found = measured()
    inside, later = min(found["inside"]), min(found["after the inner one"])
    pages = 48 * 2**20 // os.sysconf("SC_PAGESIZE")  # large pages may make them fewer
    assert min(found["before"]) > 100 * (inside + 1)
    assert max(found["after"]) > 100 * (inside + 1)
    assert max(inside, later) < pages / 100
    assert found["given back"] > 300 * 2**20


@pytest.mark.parametrize(
    ("device", "variables"), [("meta", {}), ("cpu", {"MALLOC_TRIM_THRESHOLD_": "131072"})], ids=["GPU", "user"]
)
def test_nothing_changes_on_a_gpu_or_where_the_user_decides(device, variables):
    found = measured(device, **variables)
    assert min(found["inside"] + found["after the inner one"]) > min(found["before"]) / 2


def test_training_is_inside(monkeypatch):
    """Of a run and of one round of it."""
    from test_cpu_pool import Net

    import fedlada

    seen = []

    class Looks(fedlada.Observer):
        def on_round(self, simulation, row):
            seen.append(cpu_memory._users)

    entered = []
    monkeypatch.setattr(
        cpu_memory, "_enter", lambda library, real=cpu_memory._enter: (real(library), entered.append(1))
    )
    x, y = torch.randn(20, 1, 8, 8), torch.randint(0, 3, (20,))
    fedlada.simulate(
        Net(True), (x, y), rounds=2, batch_size=4, lr=0.1, cohort_size=2, device="cpu", callbacks=[Looks()]
    )
    assert seen == [1, 1]
    assert len(entered) == 1 + 2 * 2, "the run, its rounds, their clients"
    assert cpu_memory._users == 0
