"""The benchmarks of speed on a CPU do the work that their results speak of."""

from __future__ import annotations

import json
import pickle
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import wait_until
from fedlada.models import pfl_cnn

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # it is set on import
    return runpy.run_path(str(BENCHMARKS / "simulators" / "task.py"))


def test_the_model_of_the_pfl_task_is_ours(task):
    torch.manual_seed(0)
    ours = pfl_cnn()
    theirs = task["TASKS"]["pfl"].make_model()  # seeds by itself
    assert [repr(layer) for layer in theirs.layers] == [repr(layer) for layer in ours]
    assert all(map(torch.equal, theirs.parameters(), ours.parameters()))


def test_the_pfl_task_is_250_steps_a_round(task):
    work = task["TASKS"]["pfl"]
    steps = work.local_epochs * -(-work.samples_per_client // work.batch_size)
    cohorts = work.draw_cohorts(3)
    assert [len(set(cohort)) * steps for cohort in cohorts] == [250] * 3
    assert max(map(max, cohorts)) < work.num_clients == 1000


def test_the_pfl_task_reads_cifar10(task, tmp_path, monkeypatch):
    """All training images, each with its own label, then test images."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, file in enumerate([*(f"data_batch_{one}" for one in range(1, 6)), "test_batch"]):
        labels = [number, 9, number]
        pixels = np.repeat(np.array(labels, np.uint8)[:, None] * 10, 3072, axis=1)
        (folder / file).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))
    monkeypatch.setenv("BENCHMARK_DATA", str(tmp_path))
    images, labels = task["TASKS"]["pfl"].make_samples()
    assert images.shape == (18, 3, 32, 32)
    assert torch.equal(images[:, 0, 0, 0], labels * 10 / 255 - 0.5)
    assert sorted(labels[:15].tolist()) == sorted([*range(5), *range(5), *[9] * 5])
    assert labels[15:].tolist() == [5, 9, 5]


def test_two_processes_are_measured_by_the_first():
    compare = runpy.run_path(str(BENCHMARKS / "simulators" / "compare.py"))
    arguments = Namespace(task="digits", rounds=3, threads=1, data_dir=None)
    worker = compare["Worker"]("fedlada", "with_fedlada.py", processes=2)
    found = compare["run_worker"](worker, sys.executable, arguments)
    assert found is not None
    assert found["rounds"] == 3
    assert found["test_accuracy"] > 0.5


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_worker_that_takes_too_long_ends_with_all_that_it_started(processes, tmp_path, capsys):
    """Its own child, or the processes of torchrun, which have sessions of their own."""
    compare = runpy.run_path(str(BENCHMARKS / "simulators" / "compare.py"))
    compare["run_worker"].__globals__["WORKER_TIMEOUT_SECONDS"] = 3 if processes == 1 else 20
    script = tmp_path / "starts.py"
    script.write_text(
        "import os, pathlib, subprocess, sys, time\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "if 'RANK' in os.environ:\n"
        "    (here / f'pid{os.getpid()}').touch()\n"
        "    time.sleep(300)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "(here / f'pid{child.pid}').touch()\n"
        "child.wait()\n"
    )
    arguments = Namespace(task="digits", rounds=3, threads=1, data_dir=None)
    worker = compare["Worker"]("slow", str(script), processes=processes)
    assert compare["run_worker"](worker, sys.executable, arguments) is None
    assert "slow: no result after" in capsys.readouterr().err
    started = [Path("/proc") / one.name[3:] / "cmdline" for one in tmp_path.glob("pid*")]
    assert len(started) == processes
    wait_until(lambda: not any(one.exists() and one.read_text() for one in started), seconds=20)  # reaped or not


def test_a_clients_round_is_measured_with_its_page_faults():
    words = [sys.executable, BENCHMARKS / "cpu_steps.py", "--one", "lenet", "fedlada", "2"]
    done = subprocess.run([*words, "both"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ms"] > 0
    assert found["faults"] >= 0
    wrong = subprocess.run([*words, "all"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "VARIANT must be one of neither, memory, layout, both, got 'all'" in wrong.stderr


def test_many_clients_are_measured_and_resumed(tmp_path):
    measure = runpy.run_path(str(BENCHMARKS / "many_clients.py"))["measure"]
    found = measure(60, "scaffold", "iid", 12, tmp_path / "run")
    assert {"start_s", "start_mb", "plan_ms", "round_ms", "rounds_mb", "save_ms"} == set(found)
    resumed = measure(60, "scaffold", "iid", 13, tmp_path / "run")
    assert {"start_s", "start_mb", "plan_ms"} == set(resumed)  # it did not run the twelfth round again
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 13
