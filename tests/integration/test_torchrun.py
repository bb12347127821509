"""The same run on several processes, started by torchrun or as torchrun would, on this machine's CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from command_line import ENVIRONMENT, fedlada, free_port, num_rows, rows, several, wait_until, warm
from fedlada.data import LocalWork, as_samples
from fedlada.engines import SequentialEngine
from fedlada.engines.distributed import DistributedEngine, shares
from fedlada.federation.cohorts import FixedSize, Unreliable
from fedlada.federation.plan import Assignment, Plan
from fedlada.federation.schedules import Constant
from fedlada.methods.state import named_tensors
from fedlada.methods.testing.attacks import as_attack
from fedlada.training.simulation import Simulation
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

SETTINGS = [
    "--num-clients", 8, "--cohort-size", 5, "--local-epochs", 1, "--size-spread", 0.7, "--dropout", 0.2, "--dtype",
    "float64", "--model", "mlp", "--seed", 3, "--checkpoint-every", 2,
    "--device", "cpu",
]  # fmt: skip


def start(num_processes, *arguments):
    command = [
        sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_processes}", "--master-addr=127.0.0.1",
        f"--master-port={free_port()}", "-m", "fedlada", *arguments,
    ]  # fmt: skip
    environment = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def final_server(folder):
    return load_file(max((folder / "checkpoints").glob("round-*.safetensors")))


def test_ordered_is_one_process_to_the_bit(tmp_path):
    """With messages in codes too: noise, residuals and the ledger do not know who ran a client."""
    common = ["run", "--method", "scaffold", "--rounds", 6, *SETTINGS, "--messages", "control=int8:delta=top0.2"]
    fedlada(*common, "--out", tmp_path / "one", "--quiet")
    out = several(2, [*common, "--ordered", "--out", tmp_path / "ordered"])
    assert out.count("test accuracy") == 1  # one process speaks for all
    assert rows(tmp_path / "ordered") == rows(tmp_path / "one")
    one, ordered = final_server(tmp_path / "one"), final_server(tmp_path / "ordered")
    assert one.keys() == ordered.keys()
    assert all(torch.equal(ordered[name], value) for name, value in one.items())


EVERY_METHOD = f"""
import os, sys
import torch
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import fedlada
from fedlada.methods.state import named_tensors
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

found = {{}}
for name, row in METHODS.items():
    for ordered in (True, False):
        result = fedlada.simulate(
            small_net(), blobs(), method=row.method(), partition=UNEQUAL, cohort_size=3, rounds=3, lr=0.05,
            batch_size=8, dtype=torch.float64, device="cpu", ordered=ordered, engine="sequential",
        )
        found |= {{f"{{name}} {{ordered}} {{path}}": vector for path, vector in named_tensors(result.server)}}
if os.environ.get("RANK", "0") == "0":
    torch.save(found, sys.argv[1])
"""


def test_every_method(tmp_path):
    """In order to the bit, as sums to rounding: servers, client states and combiners of every kind."""
    script = tmp_path / "every.py"
    script.write_text(EVERY_METHOD)
    done = warm([tmp_path / "one"], program=script)
    assert done.returncode == 0, done.stderr
    several(2, [tmp_path / "two"], program=script)
    one, two = (torch.load(tmp_path / name) for name in ("one", "two"))
    assert {key.split()[0] for key in one} == METHODS.keys()
    assert one.keys() == two.keys()
    for key, value in one.items():
        if "True" in key.split():
            assert torch.equal(two[key], value), key
        else:
            torch.testing.assert_close(two[key], value, rtol=1e-9, atol=1e-12, msg=key)


OWN_METHOD = """
import atexit
import os
import sys
from dataclasses import dataclass
import torch
import fedlada
from fedlada.data import IID, load_digits

@dataclass(frozen=True, eq=False)
class FromPrior(fedlada.LocalTransform):
    prior: torch.Tensor
    def init_shared(self, params):
        return {"centre": self.prior}
    def init_kept(self, params):
        return {"own": self.prior}
    def apply(self, update, local, step):
        return update + 0.1 * (step.params - step.shared["centre"] - step.kept["own"] - self.prior), local
    def finish(self, local, done, step):
        return {}, {"own": step.kept["own"] + done.delta}
    def merge(self, shared, mean, round):
        return {"centre": shared["centre"] + round.delta}

model = fedlada.models.mlp(10, hidden=[4])
prior = torch.linspace(0, 1, sum(p.numel() for p in model.parameters()), dtype=torch.float64)
method = fedlada.FederatedMethod(name="own", local=(FromPrior(prior),), server=fedlada.server.SGD())
# Registered first, so called last: threads of a group that is still there may abort the process.
atexit.register(lambda: torch.distributed.is_initialized() and os._exit(3))
make = lambda: torch.nn.Sequential(fedlada.models.mlp(10, hidden=[4]), torch.nn.Dropout(0.2))
for rounds in map(int, sys.argv[2:]):
    fedlada.simulate(
        make, load_digits()[0], method=method, rounds=rounds, cohort_size=3,
        partition=IID(num_clients=6), batch_size=100, local_epochs=1, lr=0.05, ordered=True, out=sys.argv[1],
        checkpoint_every=1, dtype=torch.float64, device="cpu",
    )
"""


def test_what_a_method_holds_is_not_overwritten(tmp_path):
    """States that begin with a tensor of the method's own, and dropout, in a run that is resumed too."""
    script = tmp_path / "own.py"
    script.write_text(OWN_METHOD)
    assert warm([str(tmp_path / "one"), "4"], program=script).returncode == 0
    several(2, [tmp_path / "two", 2, 4], program=script)
    one, two = final_server(tmp_path / "one"), final_server(tmp_path / "two")
    assert all(torch.equal(two[name], value) for name, value in one.items())


FROM_THE_PAST = """
import sys
import torch
import fedlada
from fedlada.data import IID, load_digits

class Halved(fedlada.Observer):
    lr = 0.2
    def __call__(self, round):
        return self.lr
    def on_round(self, simulation, row):
        self.lr /= 2

class ByLoss(fedlada.cohorts.Cohorts, fedlada.Observer):
    seen = 0.0
    def draw(self, num_clients, seed, round):
        first = int(1e6 * self.seen) % 5
        return [first, first + 4]
    def on_round(self, simulation, row):
        self.seen = row["train_loss"]

class OneStep(fedlada.Unreliable, fedlada.Observer):
    is_pure = False
    once = False
    def steps_done(self, num_steps, seed, round, client):
        return 1 if OneStep.once else num_steps
    def on_round(self, simulation, row):
        OneStep.once = True

rate, cohorts, unreliable = Halved(), ByLoss(), OneStep()
result = fedlada.simulate(
    lambda: fedlada.models.mlp(10, hidden=[4]), load_digits()[0], method="fedavg", rounds=4, cohorts=cohorts, lr=rate,
    unreliable=unreliable, partition=IID(num_clients=9), batch_size=50, callbacks=[rate, cohorts, unreliable],
    weights=range(1, 10), ordered=True, out=sys.argv[1], dtype=torch.float64, device="cpu",
)
print([(row["lr"], row["clients"]) for row in result.history])
"""


def test_what_callbacks_decide_is_decided_for_all_processes(tmp_path):
    """Callbacks run in the first process only: rates, cohorts and steps that depend on them are its own."""
    script = tmp_path / "past.py"
    script.write_text(FROM_THE_PAST)
    one = warm([str(tmp_path / "one")], program=script)
    assert one.returncode == 0, one.stderr
    assert several(2, [tmp_path / "two"], program=script) == 2 * one.stdout
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    assert [row["lr"] for row in rows(tmp_path / "one")] == [0.2, 0.1, 0.05, 0.025]
    one, two = final_server(tmp_path / "one"), final_server(tmp_path / "two")
    assert all(torch.equal(two[name], value) for name, value in one.items())


BAD_RATE = """
import fedlada
from fedlada.data import load_digits

class Lost(fedlada.Observer):
    lr = 0.1
    def __call__(self, round):
        return self.lr
    def on_round(self, simulation, row):
        self.lr = -1.0

rate = Lost()
try:
    fedlada.simulate(
        lambda: fedlada.models.mlp(10), load_digits()[0], method="fedavg", rounds=2, lr=rate, callbacks=[rate],
        device="cpu",
    )
except Exception as error:
    print(type(error).__name__, error)
"""


def test_all_processes_hear_why_the_first_has_no_plan(tmp_path):
    script = tmp_path / "bad.py"
    script.write_text(BAD_RATE)
    why = "the learning rate of round 2 must be a finite number of at least 0, got -1.0"
    said = several(2, [], program=script).splitlines()
    assert sorted(said) == [f"RuntimeError the first process of this run has failed: {why}", f"ValueError {why}"]


def test_sums_are_one_process_to_rounding(tmp_path):
    common = ["run", "--method", "fedlada", "--engine", "stacked", "--rounds", 6, *SETTINGS, "--quiet"]
    common += ["--messages", "delta=top0.3:v=float32+every2"]
    fedlada(*common, "--out", tmp_path / "one")
    several(3, [*common, "--out", tmp_path / "summed"])
    pairs = list(zip(rows(tmp_path / "summed"), rows(tmp_path / "one"), strict=True))
    assert all(row["bytes_by_client"] == other["bytes_by_client"] for row, other in pairs)
    assert all(row["drift"] == pytest.approx(other["drift"], rel=1e-9) for row, other in pairs)
    summed = final_server(tmp_path / "summed")
    for name, value in final_server(tmp_path / "one").items():
        torch.testing.assert_close(summed[name], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attack", ["a-little-is-enough:0.4", "gaussian-noise:0.4:0.01"])
def test_attackers_are_those_of_one_process(attack, tmp_path):
    """Those who collude know the clients of every process."""
    common = ["run", "--method", "fedlada", "--attack", attack, "--rounds", 4, *SETTINGS, "--quiet"]
    fedlada(*common, "--out", tmp_path / "one")
    several(2, [*common, "--out", tmp_path / "two"])
    assert [row["attackers"] for row in rows(tmp_path / "two")] == [row["attackers"] for row in rows(tmp_path / "one")]
    two = final_server(tmp_path / "two")
    for name, value in final_server(tmp_path / "one").items():
        torch.testing.assert_close(two[name], value, rtol=1e-10, atol=1e-12)


def test_a_rank_that_dies_ends_the_run_and_it_resumes_with_another_number(tmp_path):
    common = ["run", "--method", "scaffold", *SETTINGS, "--ordered", "--out", tmp_path / "run"]
    process = start(2, *common, "--rounds", 100_000)
    wait_until(lambda: num_rows(tmp_path / "run") >= 3, process)
    second = next(pid for pid in children(process.pid) if environment(pid)["RANK"] == "1")
    os.kill(second, signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    # torchrun asks the first process to end, which usually has missed the other by then; on a busy machine not always.
    said = ("another process of this run has died, so this one ends too; start it again with", "stopped; continue with")
    assert any(f"fedlada: {sentence}" in errors for sentence in said), errors
    done = len(rows(tmp_path / "run"))
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace("100000", str(done + 4)))
    several(3, ["resume", tmp_path / "run", "--quiet"])
    fedlada("run", "--method", "scaffold", *SETTINGS, "--rounds", done + 4, "--out", tmp_path / "one", "--quiet")
    assert rows(tmp_path / "run") == rows(tmp_path / "one")


def children(pid):
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def environment(pid):
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)


@given(st.lists(st.integers(1, 50), min_size=0, max_size=40), st.integers(1, 8))
def test_shares_keep_the_order_and_are_even(steps, num_ranks):
    work = [Assignment(client, [None] * count, [None] * count, 1.0, 0) for client, count in enumerate(steps)]
    parts = shares(work, num_ranks)
    assert len(parts) == num_ranks
    assert [one for part in parts for one in part] == work
    if steps:
        heaviest = max(sum(one.num_steps for one in part) for part in parts)
        assert heaviest <= sum(steps) / num_ranks + max(steps)


@pytest.mark.parametrize("messages", ["float32", "control=int8:delta=top0.3"])
@pytest.mark.parametrize("ordered", [False, True])
def test_one_process_merges_what_it_alone_has(ordered, messages, monkeypatch):
    """Sums of one process, weights by examples: the run and its rows are those of the engine inside."""
    assert_merged(ordered, messages, monkeypatch)


@pytest.mark.parametrize("attack", ["gaussian-noise:0.4", "inner-product:0.4"])
def test_one_process_has_the_attackers_of_the_engine_inside(attack, monkeypatch):
    assert_merged(False, "float32", monkeypatch, as_attack(attack))


def assert_merged(ordered, messages, monkeypatch, attack=None):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        alone, shared = (simulation(around, messages, attack) for around in (None, ordered))
    finally:
        dist.destroy_process_group()
    for (name, one), (_, other) in zip(named_tensors(shared.server), named_tensors(alone.server), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)
    for row, other in zip(shared.history, alone.history, strict=True):
        assert {**row, "seconds": 0} == {
            name: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            for name, value in {**other, "seconds": 0}.items()
        }


def simulation(ordered, messages, attack=None):
    """Four rounds of SCAFFOLD; by way of a distributed engine, where it is said how."""
    cpu = torch.device("cpu")
    engine = SequentialEngine(
        small_net(), METHODS["scaffold"].method(), as_samples(blobs(), cpu, torch.float64), None, device=cpu,
        dtype=torch.float64,
    )  # fmt: skip
    plan = Plan(
        clients=UNEQUAL.assign(blobs()[1], 0),
        cohorts=FixedSize(3),
        work=LocalWork(batch_size=10),
        schedule=Constant(0.05),
        weights="examples",
        unreliable=Unreliable(dropout=0.2),
    )
    made = Simulation(
        engine if ordered is None else DistributedEngine(engine, ordered=ordered),
        plan,
        messages=messages,
        attack=attack,
    )
    made.run(4)
    return made


@pytest.mark.slow
def test_private_noise_is_drawn_once_for_all_processes(tmp_path):
    """The same bits, ordered or not: every process has all uploads and the noise of the round."""
    common = ["run", "--method", "fedlada", "--rounds", 3, "--num-clients", 8, "--cohort-size", 5, "--local-steps", 2]
    common += ["--model", "mlp", "--device", "cpu", "--combiner", "private:0.5:v=10", "--noise-multiplier", 4]
    fedlada(*common, "--out", tmp_path / "one", "--quiet")
    several(2, [*common, "--ordered", "--out", tmp_path / "ordered"])
    assert rows(tmp_path / "ordered") == rows(tmp_path / "one")
    assert rows(tmp_path / "one")[-1]["epsilon"] > 0
    one, ordered = final_server(tmp_path / "one"), final_server(tmp_path / "ordered")
    assert all(torch.equal(ordered[name], value) for name, value in one.items())


OWN_COMBINERS = """
import sys
import torch
import fedlada
from fedlada.data import IID, load_digits
sys.path.insert(0, sys.argv[1])
from own_combiners import LinearTotalFirst, TotalFirst

out = sys.argv[2]
combiners = {"mean": (fedlada.combine.Mean(), False), "own": (TotalFirst(), False)}
combiners |= {"ordered": (TotalFirst(), True), "linear": (LinearTotalFirst(), False)}
for name in sys.argv[3:]:
    combiner, ordered = combiners[name]
    fedlada.simulate(
        lambda: fedlada.models.mlp(10, hidden=[4]), load_digits()[0], method="fedavg", combiner=combiner, rounds=3,
        cohort_size=4, partition=IID(num_clients=6, size_spread=0.8), weights="examples", batch_size=50, lr=0.05,
        ordered=ordered, out=f"{out}/{name}", dtype=torch.float64, device="cpu",
    )
"""


def test_an_own_combiner_begins_with_all_weights(tmp_path):
    """Those of the whole cohort, or of the process's share if it is linear."""
    script, tests = tmp_path / "own.py", Path(__file__).resolve().parents[1]
    script.write_text(OWN_COMBINERS)
    assert warm([str(tests), str(tmp_path), "mean"], program=script).returncode == 0
    several(2, [tests, tmp_path, "own", "ordered", "linear"], program=script)
    expected = final_server(tmp_path / "mean")
    for name in ("own", "ordered", "linear"):
        found = final_server(tmp_path / name)
        assert all(torch.allclose(found[key], value, rtol=1e-12, atol=1e-12) for key, value in expected.items()), name
