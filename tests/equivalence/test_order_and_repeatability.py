"""The same seed gives the same bits, whatever the order in which clients run and whatever else draws numbers."""

from __future__ import annotations

import gc
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import fedlada
from fedlada.data import LocalWork, as_samples
from fedlada.engines import SequentialEngine
from fedlada.federation.cohorts import Everyone, Scheduled
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import Constant
from fedlada.methods.state import named_tensors
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net


def run(name, **changes):
    x, y = blobs()
    values = {
        "method": METHODS[name].method(),
        "partition": UNEQUAL,
        "cohort_size": 3,
        "rounds": 6,
        "lr": 0.05,
        "batch_size": 8,
        "test": (x, y),
    }
    return fedlada.simulate(small_net(), (x, y), **{**values, **changes})


def same_bits(first, second):
    pairs = zip(named_tensors(first), named_tensors(second), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def without_time(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_twice_the_same(name):
    first = run(name)
    torch.manual_seed(12345)  # somebody else's use of the global generators must not matter
    np.random.seed(3)  # noqa: NPY002
    second = run(name)
    assert same_bits(first.server, second.server)
    assert without_time(first.history) == without_time(second.history)
    assert not same_bits(first.server, run(name, seed=1).server)


@dataclass(frozen=True)
class Fails(fedlada.Combiner):
    streams: ClassVar[bool] = True

    def combine(self, uploads, weights):
        next(iter(uploads))
        raise KeyError("mine")


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_an_error_leaves_the_generators_alone_while_somebody_holds_it(engine):
    """A notebook keeps the last error, and with it the frames of the round."""
    with pytest.raises(KeyError, match="mine") as held:
        run("fedlada", engine=engine, combiner=Fails())
    disturb(5)
    expected = torch.rand(3)
    disturb(5)
    del held
    gc.collect()
    assert torch.equal(torch.rand(3), expected)


GLOBAL = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "python": random.random}


class Shifted(Dataset):
    """Samples moved at random whenever they are read, as an augmentation does."""

    def __init__(self, draw):
        self.draw, (self.x, self.targets) = draw, blobs()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.draw(), self.targets[index]


def disturb(seed):
    """Somebody else's use of the global generators."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("data", [blobs(), Shifted(GLOBAL["numpy"])], ids=["arrays", "random"])
def test_the_global_generators_are_left_alone(engine, data):
    def drawn():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()  # noqa: NPY002

    disturb(0)
    expected = drawn()
    disturb(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what each client draws alone is not stacked
        fedlada.simulate(small_net(), data, method="fedlada", rounds=2, engine=engine)
    assert drawn() == expected


@pytest.mark.parametrize("kind", GLOBAL)
def test_a_data_set_may_draw_from_the_global_generators(kind, tmp_path):
    """Twice, resumed and in what is measured: the numbers depend on the seed, and the user's own go on as before."""

    def own(**changes):
        data = Shifted(GLOBAL[kind])
        settings = {"method": METHODS["fedlada"].method(), "lr": 0.05, "test": data, "client_test": 0.3, **changes}
        return fedlada.simulate(
            small_net(), data, partition=UNEQUAL, cohort_size=3, batch_size=8, eval_train_every=1, **settings
        )

    disturb(1)
    expected = [draw() for draw in GLOBAL.values()]
    disturb(1)
    first = own(rounds=4)
    assert [draw() for draw in GLOBAL.values()] == expected
    own(rounds=2, out=tmp_path)
    disturb(2)
    for again in (own(rounds=4), own(rounds=4, out=tmp_path)):
        assert same_bits(first.server, again.server)
        assert without_time(first.history) == without_time(again.history)


def test_a_generator_object_of_a_data_set_is_not_resumed(tmp_path):
    """As the design says: its state is the user's, and stands in no folder."""

    def own(**changes):
        generator = np.random.default_rng(0)
        data = Shifted(lambda: generator.standard_normal())
        settings = {"method": METHODS["fedavg"].method(), "lr": 0.05, "partition": UNEQUAL, "batch_size": 8}
        return fedlada.simulate(small_net(), data, **settings, **changes).server

    whole = own(rounds=4)
    assert same_bits(own(rounds=4), whole)
    own(rounds=2, out=tmp_path)
    assert not same_bits(own(rounds=4, out=tmp_path), whole)


def test_simulations_in_threads_leave_each_other_alone():
    model, names = (
        small_net(),
        ["fedlada", "scaffold", "fedadam"],
    )  # made here: its numbers are drawn from torch's generator

    def one(name):
        settings = {"method": METHODS[name].method(), "partition": UNEQUAL, "cohort_size": 3, "batch_size": 8}
        return fedlada.simulate(model, blobs(), test=blobs(), rounds=8, lr=0.05, **settings)

    alone = [one(name) for name in names]
    with ThreadPoolExecutor(len(names)) as pool:
        together = list(pool.map(one, names))
    for first, second in zip(alone, together, strict=True):
        assert same_bits(first.server, second.server)
        assert without_time(first.history) == without_time(second.history)


class Scaled(nn.Module):
    """Scales its output by a number of Python's generator."""

    def __init__(self):
        super().__init__()
        self.net = small_net()

    def forward(self, x):
        return self.net(x) * random.uniform(0.5, 1.5)


def test_a_model_may_draw_from_pythons_generator():
    x, y = blobs()
    values = {"method": "fedavg", "rounds": 3, "partition": UNEQUAL, "batch_size": 8}
    disturb(1)
    first = fedlada.simulate(Scaled, (x, y), **values)
    disturb(2)
    with pytest.warns(UserWarning, match="it draws random numbers in its forward pass"):
        second = fedlada.simulate(Scaled, (x, y), **values, engine="stacked")
    assert same_bits(first.server, second.server)


@pytest.mark.parametrize("kind", GLOBAL)
def test_what_an_evaluation_draws_follows_the_seed(kind, tmp_path):
    """A model or metric may draw where the data are in memory too."""
    x, y = blobs()

    def own(**changes):
        settings = {"test": (x, y), "client_test": 0.3, "metrics": {"drawn": lambda *_: GLOBAL[kind]()}}
        return fedlada.simulate(Scaled, (x, y), method="fedavg", partition=UNEQUAL, **settings, **changes)

    disturb(1)
    expected = [draw() for draw in GLOBAL.values()]
    disturb(1)
    first = own(rounds=4)
    assert [draw() for draw in GLOBAL.values()] == expected
    own(rounds=2, out=tmp_path)
    disturb(2)
    for again in (own(rounds=4), own(rounds=4, out=tmp_path)):
        assert without_time(first.history) == without_time(again.history)


def test_data_in_memory_do_not_pay_for_seeding():
    cpu = torch.device("cpu")
    data = ((blobs(), False), (Shifted(float), True))
    for given, seeds in data:
        samples = as_samples(given, cpu, torch.float32)
        engine = SequentialEngine(small_net(), METHODS["fedavg"].method(), samples, None, device=cpu)
        assert engine.seeds_python is seeds


def test_the_order_in_which_a_cohort_is_named_does_not_matter():
    first = run("scaffold", cohort_size=None, cohorts=Scheduled([[0, 3, 4], [1, 3, 2]]))
    second = run("scaffold", cohort_size=None, cohorts=Scheduled([[4, 0, 3], [3, 2, 1]]))
    assert same_bits(first.server, second.server)


@pytest.mark.parametrize("name", METHODS)
def test_clients_may_run_in_any_order(name):
    """Each client's upload depends on its key alone, also where the model draws numbers itself."""
    x, y = blobs()
    model = nn.Sequential(small_net(), nn.Dropout(0.5))
    cpu = torch.device("cpu")
    samples = as_samples((x, y), cpu, torch.float32)
    engine = SequentialEngine(model, METHODS[name].method(), samples, None, device=cpu)
    plan = Plan(
        clients=UNEQUAL.assign(y, 0), cohorts=Everyone(), work=LocalWork(batch_size=8), schedule=Constant(0.05)
    ).round(3)
    server = engine.method.init(engine.initial_params())
    kept = engine.method.init_kept(server.params)

    def uploads(order):
        results = {}
        for index in order:
            work = plan.assignments[index]
            results[work.client] = engine.train_client(server.broadcast, kept, work, lr=plan.lr)
        return results

    with torch.random.fork_rng():
        forwards, backwards = uploads([0, 1, 2, 3, 4]), uploads([4, 2, 0, 3, 1])
    for client, result in forwards.items():
        assert same_bits(result.upload, backwards[client].upload)
        assert result.train_loss == backwards[client].train_loss


DRAWS = {"numpy": lambda: float(np.random.rand()), "python": random.random}  # noqa: NPY002


@dataclass(frozen=True)
class Draws(fedlada.LocalTransform):
    source: str

    def apply(self, update, local, step):
        return update + 0.01 * DRAWS[self.source](), local


@dataclass(frozen=True)
class DrawsAfter(fedlada.ServerOptimizer):
    source: str

    def step(self, params, delta, state, round):
        return params - delta + 0.01 * DRAWS[self.source](), state


@dataclass(frozen=True)
class DrawsBetween(fedlada.Combiner):
    source: str

    def combine(self, uploads, weights=None):
        mean = fedlada.average(list(uploads), weights)
        return fedlada.Upload(mean.delta + 0.01 * DRAWS[self.source](), mean.extra)


@dataclass(frozen=True)
class DrawsAtFirst(fedlada.LocalTransform):
    source: str

    def init_shared(self, params):
        return {"noise": params * 0 + DRAWS[self.source]()}

    def init_kept(self, params):
        return {"own": params * 0 + DRAWS[self.source]()}

    def apply(self, update, local, step):
        return update + 0.01 * (step.shared["noise"] + step.kept["own"]), local


@pytest.mark.parametrize("part", ["first", "local", "server", "combiner"])
@pytest.mark.parametrize("source", DRAWS)
def test_what_a_method_draws_follows_the_seed(source, part, tmp_path):
    parts = {"local": (), "server": fedlada.server.SGD(), "combiner": fedlada.combine.Mean()}
    own_parts = {"local": (Draws(source),), "server": DrawsAfter(source), "combiner": DrawsBetween(source)}
    parts |= {"local": (DrawsAtFirst(source),)} if part == "first" else {part: own_parts[part]}
    method = fedlada.FederatedMethod(name="own", **parts)

    def trained(rounds=4, **given):
        own = {"method": method, "lr": 0.05, "rounds": rounds, "batch_size": 8, "cohort_size": 2} | given
        return fedlada.simulate(small_net(), blobs(), partition=UNEQUAL, **own).server.params

    first = trained()
    assert torch.equal(trained(), first)
    assert not torch.equal(trained(seed=1), first)
    trained(2, out=tmp_path)
    assert torch.equal(trained(out=tmp_path), first)
