"""The bits of a run do not depend on the threads that the environment offers."""

from __future__ import annotations

import hashlib
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedlada
from command_line import fedlada as command
from command_line import fresh, rows, several, warm
from fedlada.data import IID
from fedlada.flower import InProcessGrid, MethodStrategy, client_app
from fedlada.methods.state import named_tensors

pytestmark = pytest.mark.slow

CLIENTS = IID(num_clients=4)
SETTINGS = {"cohort_size": 2, "batch_size": 25, "local_steps": 2, "seed": 3, "lr": 0.05, "combiner": "mean"}


class Recurrent(nn.Module):
    """Two LSTM layers over characters."""

    def __init__(self):
        super().__init__()
        self.symbols, self.layers, self.out = (
            nn.Embedding(64, 32),
            nn.LSTM(32, 64, 2, batch_first=True),
            nn.Linear(64, 4),
        )

    def forward(self, x):
        return self.out(self.layers(self.symbols(x))[0][:, -1])


def convolutional():
    net = nn.Sequential(nn.Conv2d(3, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 5), nn.Flatten())
    return nn.Sequential(net, nn.Linear(1600, 4))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 300), nn.ReLU(), nn.Linear(300, 4))


def transformer():
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(64, 64), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(64 * 30, 4))


MODELS = {"cnn": convolutional, "mlp": dense, "transformer": transformer, "lstm": Recurrent}


def data(name):
    random = np.random.default_rng(1)
    y = random.integers(0, 4, 100)
    if name in ("cnn", "mlp"):
        return (random.standard_normal((100, 3, 32, 32)) + y[:, None, None, None]).astype(np.float32), y
    return (random.integers(0, 16, (100, 30)) + 16 * y[:, None]) % 64, y


@contextmanager
def offered(threads):
    """The threads that a user's process would compute with."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run(name, rounds=3, threads=1, **options):
    train = data(name)
    values = {"method": fedlada.recipes.fedlada(), "partition": CLIENTS, "test": train, **SETTINGS}
    return fedlada.simulate(MODELS[name], train, rounds=rounds, threads=threads, **values, **options)


def bits(result):
    """Everything that a run left: the server's vectors and the history without the clock."""
    words = hashlib.sha256()
    for path, vector in named_tensors(result.server):
        words.update(path.encode() + vector.numpy().tobytes())
    return words.hexdigest(), [
        {key: row[key] for key in ("train_loss", "drift", "test_loss")} for row in result.history
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_environment_changes_nothing(name, tmp_path):
    with offered(1):
        expected = bits(run(name))
    with offered(2):
        assert bits(run(name)) == expected
        run(name, rounds=2, out=tmp_path / "resumed")
    with offered(4):
        assert bits(run(name)) == expected
        assert bits(run(name, out=tmp_path / "resumed")) == expected
        assert torch.get_num_threads() == 4  # a run gives back what it found


ON_CORES = f"""
import os, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from test_threads import MODELS, bits, run

if sys.argv[1] == "one":
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # as by taskset, before there is a second thread
for name in MODELS:
    print(name, [bits(run(name, threads=threads)) for threads in (1, 2)])
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no way to choose cores")
def test_one_core_changes_nothing(tmp_path):
    script = tmp_path / "cores.py"
    script.write_text(ON_CORES)
    one, all_of_them = (warm([cores], program=script) for cores in ("one", "all"))
    assert one.returncode == all_of_them.returncode == 0, one.stderr + all_of_them.stderr
    assert one.stdout.split()[0] == next(iter(MODELS))
    assert one.stdout == all_of_them.stdout


KILLED = f"""
import os, signal, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
from test_threads import run

def kill(simulation, row):
    if row["round"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)

run(sys.argv[1], out=sys.argv[2], checkpoint_every=1, callbacks=[kill])
"""


@pytest.mark.parametrize("name", MODELS)
def test_killed_and_resumed_where_other_threads_are_offered(name, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    killed = warm([name, tmp_path / "run"], program=script, environments=[{"OMP_NUM_THREADS": "1"}])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < len(rows(tmp_path / "run")) < 3
    with offered(4):
        assert bits(run(name, out=tmp_path / "run")) == bits(run(name))


@pytest.mark.parametrize("name", MODELS)
def test_nodes_of_a_federation_take_the_servers_number(name):
    x, y = data(name)
    shares = CLIENTS.assign(y, SETTINGS["seed"])
    method = fedlada.recipes.fedlada()

    def load(context):
        seen.add(torch.get_num_threads())
        own = shares[context.node_config["partition-id"]]
        return x[own], y[own]

    app = client_app(MODELS[name], load, method=method)
    grid = InProcessGrid(app, 4)

    def node(message, context):
        with offered(4):
            return app(message, context)

    grid.app = node
    strategy = MethodStrategy(MODELS[name], method, num_clients=4, test=(x, y), threads=2, **SETTINGS)
    seen = set()
    real = strategy.run(grid, 3, progress=False)
    assert seen == {2, 4}  # 4 where a node only says who it is
    assert bits(real) == bits(run(name, threads=2))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_setting_is_what_a_run_computes_with(threads):
    seen = []
    with offered(4):
        run("mlp", rounds=1, threads=threads, callbacks=[lambda *_: seen.append(torch.get_num_threads())])
    assert seen == [threads]


@pytest.mark.parametrize("threads", [0, 1025, True, 1.5])
def test_no_other_numbers_of_threads(threads):
    with pytest.raises(ValueError, match="threads must be"):
        run("mlp", threads=threads)


def test_more_threads_are_another_run(tmp_path):
    run("mlp", rounds=1, out=tmp_path / "run")
    with pytest.raises(ValueError, match="threads is 1 there and 2 here"):
        run("mlp", rounds=2, threads=2, out=tmp_path / "run")


@pytest.mark.parametrize("name", MODELS)
def test_more_threads_agree_to_rounding(name):
    one, two = (run(name, threads=threads, dtype=torch.float64).history["train_loss"] for threads in (1, 2))
    assert two == pytest.approx(one, rel=1e-9)


FLAGS = ["--model", "cnn-gn", "--rounds", 3, "--local-steps", 3, "--num-clients", 8, "--cohort-size", 2, "--quiet"]
FLAGS += ["--device", "cpu"]
FEDCM = ["--method", "fedcm", *FLAGS]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The rows of seed 0, run alone."""
    folder = tmp_path_factory.mktemp("threads") / "run"
    command("run", *FEDCM, "--out", folder, OMP_NUM_THREADS="2")
    assert '"threads": 1' in (folder / "config.json").read_text()
    return rows(folder)


def test_run_and_resume_under_other_variables(expected, tmp_path):
    command("run", *FEDCM, "--rounds", 2, "--checkpoint-every", 1, "--out", tmp_path, OMP_NUM_THREADS="1")
    done = fresh(["resume", tmp_path, "--rounds", 3, "--quiet"], OMP_NUM_THREADS="3")
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no way to choose cores")
def test_run_on_one_core(expected, tmp_path):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # inherited by the command, as from taskset
    try:
        done = fresh(["run", *FEDCM, "--out", tmp_path])
    finally:
        os.sched_setaffinity(0, cores)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == expected


@pytest.mark.parametrize(("seeds", "jobs"), [("0", 1), ("0,1", 2)])
def test_compare_whatever_runs_beside(seeds, jobs, expected, tmp_path):
    flags = ["--methods", "fedcm", "--seeds", seeds, "--jobs", jobs, *FLAGS, "--out", tmp_path]
    command("compare", *flags, OMP_NUM_THREADS="2")
    assert rows(tmp_path / "fedcm-seed0") == expected


def test_sweep_of_two_values_at_once(tmp_path):
    flags = ["--set", "alpha=0.1,0.2", "--seeds", "0", "--jobs", 2, *FEDCM, "--out", tmp_path / "both"]
    command("sweep", *flags, OMP_NUM_THREADS="2")
    command("run", *FEDCM, "--alpha", 0.2, "--validation", 0.1, "--out", tmp_path / "one")
    found = [rows(one.parent) for one in (tmp_path / "both").rglob("metrics.jsonl")]
    assert len(found) == 2
    assert rows(tmp_path / "one") in found


def test_several_processes_in_order(expected, tmp_path):
    several(2, ["run", *FEDCM, "--ordered", "--out", tmp_path])
    assert rows(tmp_path) == expected
