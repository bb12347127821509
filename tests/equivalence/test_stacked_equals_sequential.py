"""The stacked engine gives what the sequential one gives: every method, unequal clients, drop-outs, chunks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fedlada
from fedlada.data import Augmentation, Images, LocalWork, as_samples
from fedlada.engines import SequentialEngine, StackedEngine, choose_engine
from fedlada.engines.stacked.networks import LayeredNetwork, VmappedNetwork
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.federation.cohorts import Bernoulli, FixedSize, Unreliable
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import as_schedule
from fedlada.methods.state import named_tensors
from fedlada.models import MODELS, cnn_gn, lenet, mlp, resnet18_v2_gn, text_transformer
from fedlada.models.layers import GroupNorm
from fedlada.training.simulation import Simulation
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

# Where there is a GPU the same laws hold there.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RANDOM = np.random.default_rng(0)


def simulation(
    engine, model, data, method, *, clients=None, cohorts=None, batch_size=8, loss=None, messages="float32", **options
):
    samples = as_samples(data, DEVICE, torch.float64)
    made = engine(model, method, samples, loss, device=DEVICE, dtype=torch.float64, **options)
    plan = Plan(
        clients=clients or UNEQUAL.assign(np.zeros(len(samples)), 0),
        cohorts=cohorts or FixedSize(3),
        work=LocalWork(batch_size=batch_size, epochs=2),
        schedule=as_schedule(0.05, 0.9),
        unreliable=Unreliable(dropout=0.2, stragglers=0.4),
    )
    return Simulation(made, plan, messages=messages)


def assert_same(first, second, bound=1e-10):
    pairs = list(zip(named_tensors(first.server), named_tensors(second.server), strict=True))
    for (name, one), (_, other) in pairs:
        torch.testing.assert_close(one, other, rtol=bound, atol=bound, msg=lambda text, name=name: f"{name}: {text}")
    assert first.kept.keys() == second.kept.keys()
    for client, kept in first.kept.items():
        for (_, one), (_, other) in zip(named_tensors(kept), named_tensors(second.kept[client]), strict=True):
            torch.testing.assert_close(one, other, rtol=bound, atol=bound)
    for row, other in zip(first.history, second.history, strict=True):
        for name, value in row.items():
            if isinstance(value, float) and name != "seconds":
                assert other[name] == pytest.approx(value, rel=1e-8, abs=1e-10), name
            elif name != "seconds":
                assert other[name] == value, name


def run_both(model, data, method, rounds=4, **options):
    first, second = (simulation(engine, model, data, method, **options) for engine in (SequentialEngine, StackedEngine))
    for one in (first, second):
        one.run(rounds)
    assert_same(first, second)
    return second


@cache
def sequential(name):
    """Six rounds of a method, run once for all numbers of places."""
    done = simulation(SequentialEngine, small_net(), blobs(), METHODS[name].method())
    done.run(6)
    return done


@pytest.mark.parametrize("places", [None, 2, 1])
@pytest.mark.parametrize("name", METHODS)
def test_every_method(name, places):
    """Five clients of 40, 7, 1, 42 and 30 samples; some are lost, some do part of their work."""
    stacked = simulation(StackedEngine, small_net(), blobs(), METHODS[name].method(), max_places=places)
    stacked.run(6)
    assert_same(sequential(name), stacked)


@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, changes) for name, row in METHODS.items() for changes in row.variants],
    ids=lambda value: str(value),
)
def test_every_variant(name, changes):
    run_both(small_net(), blobs(), METHODS[name].method(**changes))


def test_cohorts_of_changing_size():
    run_both(small_net(), blobs(), METHODS["scaffold"].method(), rounds=8, cohorts=Bernoulli(0.5))


class Normed(nn.Module):
    """Every kind of layer that has a stacked form, one of them frozen."""

    def __init__(self, kind):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        if kind == "odd":
            self.conv = nn.Conv2d(3, 8, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False)
        if kind == "grouped":
            self.conv = nn.Conv2d(3, 6, 3, groups=3)
        channels = self.conv.out_channels
        self.norm = GroupNorm(2, channels)
        self.plain = nn.GroupNorm(2, channels)
        self.shortcut = nn.Conv2d(channels, channels, 1)
        self.last = nn.LayerNorm(channels)
        self.frozen = nn.Linear(channels, channels).requires_grad_(False)
        self.out = nn.Linear(channels, 4)

    def forward(self, x):
        x = self.conv(x)
        x = self.norm(x, add=self.shortcut(x), relu=True)
        x = F.max_pool2d(self.plain(x), 2)
        return self.out(self.frozen(self.last(x.mean(dim=(2, 3)))))


def images(size=8, num=120, num_classes=4):
    x = RANDOM.integers(0, 256, (num, 3, size, size), dtype=np.uint8)
    return Images(x, np.arange(num) % num_classes, (0.5,) * 3, (0.2,) * 3, Augmentation(padding=1))


@pytest.mark.parametrize("kind", ["plain", "grouped", "odd"])
def test_layers(kind):
    torch.manual_seed(0)
    done = run_both(Normed(kind), images(), METHODS["fedlada"].method(), rounds=2)
    assert isinstance(done.engine.network, LayeredNetwork)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (cnn_gn(4, input_shape=(3, 8, 8)), 8),
        (lenet(4, input_shape=(3, 16, 16), width=6), 16),
        (resnet18_v2_gn(4, width=4), 12),
    ],
)
def test_models_of_images(model, size):
    done = run_both(model, images(size), METHODS["fedcm"].method(), rounds=2)
    assert isinstance(done.engine.network, LayeredNetwork)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8, padding_idx=3)
        self.norm = nn.LayerNorm(8, bias=False)
        self.out = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        return self.out(self.norm(self.table(x)).mean(dim=1))


def words(num=120, length=6, vocabulary=20):
    return RANDOM.integers(0, vocabulary, (num, length)), np.arange(num) % 4


def test_text():
    done = run_both(Words(), words(), METHODS["fedlada"].method(), rounds=3)
    assert isinstance(done.engine.network, LayeredNetwork)
    model = text_transformer(4, input_shape=(6,), vocabulary=20, width=8, depth=1, num_heads=2)
    done = run_both(model, words(), METHODS["fedlada"].method(), rounds=2)
    assert isinstance(done.engine.network, VmappedNetwork)  # its places are a bare parameter


CHARACTERS = {
    "char-lstm": {"embedding": 3, "width": 6},
    "char-transformer": {"width": 8, "num_heads": 2},
}


@pytest.mark.parametrize("method", ["fedadam", "fedlada"])
@pytest.mark.parametrize("name", CHARACTERS)
def test_models_of_characters(name, method):
    torch.manual_seed(0)
    model = MODELS[name](4, input_shape=(6,), vocabulary=20, **CHARACTERS[name])
    done = run_both(model, words(), METHODS[method].method(), rounds=2)
    assert isinstance(done.engine.network, VmappedNetwork)


class Scaled(nn.Module):
    """A parameter of its own, outside any known layer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x) * self.scale


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.same, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.same(torch.tanh(self.same(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Mixing(nn.Module):
    """Centres its batch: samples of one client see each other, and those of another must not."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x - x.mean(dim=0, keepdim=True))


@pytest.mark.parametrize(("model", "form"), [(Scaled, VmappedNetwork), (Twice, LayeredNetwork), (Tied, LayeredNetwork)])
def test_parameters_outside_a_layer_or_used_twice(model, form):
    torch.manual_seed(0)
    done = run_both(model(), blobs(), METHODS["fedlada"].method(), rounds=3)
    assert isinstance(done.engine.network, form)


def test_a_model_that_mixes_its_batch():
    """vmap keeps clients apart, but padding would be mixed in: with full batches it works, else it is refused."""
    full = [np.arange(start, start + 24) for start in range(0, 120, 24)]
    with pytest.raises(NotStackable, match="a layer may mix samples"):
        simulation(StackedEngine, Mixing(), blobs(), METHODS["fedavg"].method(), clients=full)


def test_what_cannot_be_stacked_runs_one_by_one_and_says_why():
    x, y = blobs()

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4, 3))

        def forward(self, x):
            return x @ self.scale if float(x.sum()) > 0 else -x @ self.scale

    noisy = nn.Sequential(nn.Linear(4, 3), nn.RReLU())
    for model, reason in ((noisy, "it draws random numbers"), (Branching(), "by torch.func.vmap it fails")):
        with pytest.warns(UserWarning, match=f"the stacked engine cannot be used, so one client .*{reason}"):
            result = fedlada.simulate(model, (x, y), engine="stacked", rounds=1, method="fedavg")
        assert len(result.history) == 1
        alone = fedlada.simulate(model, (x, y), engine="sequential", rounds=1, method="fedavg", device=DEVICE)
        assert torch.equal(alone.server.params, result.server.params)


def test_auto_says_what_it_took():
    x, y = blobs()
    engine = choose_engine(
        "auto", small_net(), METHODS["fedavg"].method(), as_samples((x, y), torch.device("cpu"), torch.float32), None,
        device=torch.device("cpu"),
    )  # fmt: skip
    assert isinstance(engine, SequentialEngine)
    assert engine.why == "one client after another on cpu, which is the faster way on a CPU"
    with pytest.raises(ValueError, match="engine must be one of auto, sequential, stacked, got 'fast'"):
        fedlada.simulate(small_net(), (x, y), engine="fast")
    with pytest.raises(ValueError, match="precision must be one of"):
        fedlada.simulate(small_net(), (x, y), precision="int4")
    with pytest.raises(ValueError, match="precision bf16 needs a GPU"):
        fedlada.simulate(small_net(), (x, y), engine="stacked", precision="bf16", device="cpu")


def squared(output, y):
    return ((output - F.one_hot(y, 3)) ** 2).mean()


def spread(output, y):
    """Not a mean over samples."""
    return F.cross_entropy(output, y) + output.std(dim=0).sum()


@pytest.mark.parametrize("loss", [squared, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_losses(loss):
    run_both(small_net(), blobs(), METHODS["fedlada"].method(), loss=loss, rounds=2)


def test_a_loss_that_compares_samples():
    even = [np.arange(start, start + 24) for start in range(0, 120, 24)]
    options = {"loss": spread, "clients": even, "rounds": 2}
    first, second = (
        simulation(engine, small_net(), blobs(), METHODS["fedavg"].method(), loss=spread, clients=even, **more)
        for engine, more in ((SequentialEngine, {}), (StackedEngine, {"short_batches": False}))
    )
    for one in (first, second):
        one.run(options["rounds"])
    assert_same(first, second)
    with pytest.raises(NotStackable, match="its loss is not a mean over samples, and batches differ in size"):
        simulation(StackedEngine, small_net(), blobs(), METHODS["fedavg"].method(), loss=spread)


def test_regression_and_datasets():
    x, y = blobs()
    values = torch.from_numpy(x[:, :1].copy())
    run_both(mlp(1, input_shape=(4,)), (x, values), METHODS["fedlada"].method(), rounds=2)
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    run_both(small_net(), dataset, METHODS["fedlada"].method(), rounds=2)


def test_a_client_that_diverges_is_refused_alone():
    x, y = blobs()
    x[45] = 1e308  # in the second client
    method = METHODS["scaffold"].method(clip_norm=None)
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, 100.0)  # its scores overflow there
    done = run_both(model, (x, y), method, rounds=3, cohorts=FixedSize(5))
    assert any(row["refused"] for row in done.history)
    assert 1 not in done.kept


def test_stacked_twice_is_the_same_to_the_bit():
    x, y = blobs()
    runs = [
        fedlada.simulate(small_net(), (x, y), engine="stacked", rounds=4, partition=UNEQUAL, cohort_size=3, lr=0.05)
        for _ in range(2)
    ]
    assert torch.equal(runs[0].server.params, runs[1].server.params)


def test_resumed_stacked_goes_on_to_the_same_bits(tmp_path):
    x, y = blobs()
    common = {"engine": "stacked", "partition": UNEQUAL, "cohort_size": 3, "lr": 0.05, "method": "scaffold"}
    whole = fedlada.simulate(small_net(), (x, y), rounds=6, **common)

    def stop(simulation, row):
        if row["round"] == 3:
            simulation.pause("here")

    for callbacks in ([stop], []):
        done = fedlada.simulate(
            small_net(), (x, y), rounds=6, out=tmp_path / "r", checkpoint_every=1, callbacks=callbacks, **common
        )
    assert torch.equal(done.server.params, whole.server.params)


@pytest.mark.slow
def test_what_a_gpu_compiles_is_one_graph(monkeypatch):
    """Else it warns and runs as it is; no machine code is made here."""
    made = []

    def traced(function, **others):
        made.append(function.__name__)
        del others["options"]  # of the backend that is left out
        return real(function, backend="eager", **others)

    real = torch.compile
    monkeypatch.setattr(torch, "compile", traced)
    method = METHODS["fedlada_sam"].method()
    stacked = simulation(StackedEngine, small_net(), blobs(), method)
    stacked.engine.compiles = True
    stacked.run(2)
    assert sorted(made) == ["update", "write_point", "write_point"]
    sequential = simulation(SequentialEngine, small_net(), blobs(), method)
    sequential.run(2)
    assert_same(sequential, stacked)
