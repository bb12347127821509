"""The stacked engine on a GPU: its precisions, its graphs, its repeatability; run where there is one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import fedlada
from fedlada.data import Augmentation, Dirichlet, Images, LocalWork, as_samples
from fedlada.engines import SequentialEngine, StackedEngine
from fedlada.engines.dropout import CounterDropout
from fedlada.engines.evaluation import evaluate
from fedlada.engines.masks import Elements
from fedlada.engines.stacked.recurrent import _is_fused, recurrent
from fedlada.engines.stacked.stack import compiled
from fedlada.federation.cohorts import FixedSize
from fedlada.federation.plan import Plan
from fedlada.federation.randomness import bits, words
from fedlada.federation.schedules import as_schedule
from fedlada.methods.local import LocalTransform
from fedlada.models import cnn_gn, lenet, resnet18_gn, resnet18_v2_gn, text_transformer
from fedlada.training.simulation import Simulation
from method_table import METHODS
from user_models import MODELS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
GPU, CPU = torch.device("cuda"), torch.device("cpu")


CNN = partial(cnn_gn, input_shape=(3, 32, 32))


def images(num=200, size=32, num_classes=5):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (num, 3, size, size), dtype=np.uint8)
    return Images(x, np.arange(num) % num_classes, (0.5,) * 3, (0.25,) * 3, Augmentation())


def simulation(engine, method="fedlada", model=None, dtype=torch.float32, device=GPU, lr=0.01, **options):
    torch.manual_seed(0)
    data = images()
    chosen = METHODS[method].method() if isinstance(method, str) else method
    network = (model or resnet18_gn)(5)
    made = engine(network, chosen, as_samples(data, device, dtype), None, device=device, dtype=dtype, **options)
    plan = Plan(
        clients=Dirichlet(num_clients=6, concentration=0.5, size_spread=0.5).assign(data.y, 0),
        cohorts=FixedSize(4),
        work=LocalWork(batch_size=10, epochs=1),
        schedule=as_schedule(lr, 1.0),
    )
    return Simulation(made, plan, as_samples(data, device, dtype))


def run(one, rounds):
    """The way that the server went."""
    before = one.server.params.double()
    one.run(rounds)
    return one.server.params.double() - before


def relative_error(found, exact):
    return float(torch.linalg.vector_norm(found - exact) / torch.linalg.vector_norm(exact))


# Relative error of the server's movement after two rounds, in the norm, against float64; measured on an H200 with the
# CNN and SCAFFOLD: 0.0085 (bf16), 0.0025 (tf32), 1.2e-05 (float32).
BOUNDS = {"bf16": 0.05, "tf32": 0.02, "float32": 1e-4}


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_precisions(method, precision, compiles):
    steps = None if compiles else 1
    exact = simulation(SequentialEngine, method, CNN, torch.float64)
    fast = simulation(StackedEngine, method, CNN, precision=precision, num_steps=steps)
    error = relative_error(run(fast, 2), run(exact, 2))
    print(method, precision, compiles, error)
    assert error < BOUNDS[precision]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_in_float32(name):
    """Compiled kernels, graphs and all: one round of the CNN is the sequential one's to float32's rounding."""
    pair = [
        simulation(engine, name, CNN, **more)
        for engine, more in ((SequentialEngine, {"dtype": torch.float64}), (StackedEngine, {"precision": "float32"}))
    ]
    error = relative_error(run(pair[1], 1), run(pair[0], 1))
    print(name, error)
    assert error < 1e-3


@dataclass(frozen=True)
class Momentum(LocalTransform):
    """A user's own, with a state and no declaration."""

    def begin(self, shared, kept, like):
        return {"momentum": torch.zeros_like(like)}

    def apply(self, update, local, step):
        momentum = 0.9 * local["momentum"] + update
        return momentum, {"momentum": momentum}


@pytest.mark.filterwarnings("error:a step cannot be captured", "error:the update could not be compiled")
@pytest.mark.parametrize("kind", ["a look", "a user's state"])
def test_extensions_are_captured_and_compiled(kind, monkeypatch):
    compilations = []
    monkeypatch.setattr(
        "fedlada.engines.stacked.stack.compiled", lambda *given: compilations.append(given) or compiled(*given)
    )
    own = replace(METHODS["fedavg"].method(), local=(*METHODS["fedavg"].method().local, Momentum()))
    method = "fedsam" if kind == "a look" else own
    eager = simulation(SequentialEngine, method, CNN, torch.float64)
    fast = simulation(StackedEngine, method, CNN, precision="float32")
    error = relative_error(run(fast, 2), run(eager, 2))
    print(kind, error)
    assert error < 1e-3
    stacks = list(fast.engine.stacks.values())
    assert all(stack.uses_graphs and stack.graphs for stack in stacks)
    assert len(compilations) == len(stacks) > 0


@dataclass(frozen=True, eq=False)
class Masked(LocalTransform):
    mask: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask, local


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("model", [resnet18_gn, CNN], ids=["resnet", "cnn"])
def test_a_mask_lies_as_the_parameters_do(model, compiles):
    """It is given on the host, in float64 and in the model's order; kernels have another one."""
    mask = torch.rand(sum(p.numel() for p in model(5).parameters()), dtype=torch.float64).round()
    method = replace(METHODS["fedlada"].method(), local=(*METHODS["fedlada"].method().local, Masked(mask)))
    moved = run(simulation(StackedEngine, method, model, num_steps=None if compiles else 1), 2).cpu()
    assert not moved[mask == 0].any()
    assert moved[mask == 1].ne(0).double().mean() > 0.5


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize(
    "model",
    [resnet18_gn, partial(resnet18_gn, stem="cifar"), resnet18_v2_gn, lenet, CNN],
    ids=["resnet", "resnet, 3x3 stem", "resnet v2", "lenet", "cnn"],
)
def test_twice_the_same_bits(model, compiles):
    runs = [simulation(StackedEngine, model=model, num_steps=None if compiles else 1) for _ in range(2)]
    for one in runs:
        one.run(3)
    assert torch.equal(runs[0].server.params, runs[1].server.params)
    assert [row["test_loss"] for row in runs[0].history] == [row["test_loss"] for row in runs[1].history]


@pytest.mark.parametrize("model", [resnet18_gn, resnet18_v2_gn])
def test_resnet_in_float64_is_exact(model):
    pair = [simulation(engine, model=model, dtype=torch.float64) for engine in (SequentialEngine, StackedEngine)]
    for one in pair:
        one.run(2)
    torch.testing.assert_close(pair[0].server.params, pair[1].server.params, rtol=1e-8, atol=1e-10)


def test_text_by_vmap_in_bf16():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 128, (200, 32)), np.arange(200) % 5
    result = fedlada.simulate(
        lambda: text_transformer(5), (x, y), test=(x, y), method="fedlada", rounds=5, lr=0.003, batch_size=10
    )
    assert result.server.params.is_cuda
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_graphed_evaluation_is_the_plain_one():
    one = simulation(StackedEngine)
    samples = as_samples(images(num=2345), GPU, torch.float32)
    graphed = one.engine.evaluate(one.server.params, samples, {})
    again = one.engine.evaluate(one.server.params * 1.1, samples, {})
    one.engine.flat.load(one.server.params)
    plain = evaluate(one.engine.flat.module, samples, one.engine.loss)
    assert graphed["accuracy"] == plain["accuracy"]
    assert graphed["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert again["loss"] != graphed["loss"]


def test_memories_on_the_host():
    pair = [simulation(StackedEngine, "scaffold") for _ in range(2)]
    pair[1].engine.memories.on_host = True
    for one in pair:
        one.run(4)
    assert not any(vector.is_cuda for kept in pair[1].kept.values() for vector in kept.memory[0].values())
    assert torch.equal(pair[0].server.params, pair[1].server.params)


def test_no_kernel_is_chosen_by_its_time_where_sums_would_differ(monkeypatch):
    """Beside other programs another one may be the faster: here once the largest, once the smallest."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    pair = [simulation(StackedEngine, "scaffold") for _ in range(2)]
    for one, sign in zip(pair, (1, -1), strict=True):

        def claimed(_self, launcher, *_arguments, sign=sign, **_options):
            return sign * sum(value for value in launcher.config.kwargs.values() if isinstance(value, int))

        monkeypatch.setattr(CachingAutotuner, "bench", claimed)
        one.run(3)
    assert torch.equal(pair[0].server.params, pair[1].server.params)


def test_chunks_and_lost_clients():
    pair = [simulation(StackedEngine, "scaffold", dtype=torch.float64, **more) for more in ({}, {"max_places": 3})]
    for one in pair:
        one.run(2)
    torch.testing.assert_close(pair[0].server.params, pair[1].server.params, rtol=1e-9, atol=1e-11)


def test_augmentation_is_the_same_on_both_devices():
    for crop in ("half", "always"):
        data = images()
        data = Images(data.x, data.y, data.mean, data.std, Augmentation(crop=crop))
        chosen, drawn = np.arange(50), words(bits(0, "augmentation", 3, 4), 50)
        on_gpu, on_cpu = (data.samples(place, torch.float64).batch(chosen, drawn)[0] for place in (GPU, CPU))
        assert torch.equal(on_gpu.cpu() == 0, on_cpu == 0)  # the same pixels lie outside
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-15, atol=1e-15)


def of_users(name, engine, method="fedlada", dtype=torch.float64, device=GPU, **options):
    """One of the models that users write, with clients of 20, 7, 1 and 32 samples."""
    torch.manual_seed(0)
    model, data, _ = MODELS[name]
    samples = as_samples(data(), device, dtype)
    made = engine(model(), METHODS[method].method(), samples, None, device=device, dtype=dtype, **options)
    clients = [np.arange(20), np.arange(20, 27), np.arange(27, 28), np.arange(28, 60)]
    work = LocalWork(batch_size=6, epochs=2)
    return Simulation(made, Plan(clients=clients, cohorts=FixedSize(4), work=work, schedule=as_schedule(0.05, 1.0)))


@pytest.mark.parametrize("method", ["fedlada", "fedsam"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_users(name, method):
    """As a graph, in the form that a CPU takes too: exact in float64, beside the sequential engine on both devices."""
    done = of_users(name, StackedEngine, method)
    assert type(done.engine.network).__name__ == MODELS[name][2]
    done.run(2)
    assert all(stack.uses_graphs for stack in done.engine.stacks.values())
    for device in (GPU, CPU):
        alone = of_users(name, SequentialEngine, method, device=device)
        alone.run(2)
        expected = alone.server.params.to(GPU)
        torch.testing.assert_close(done.server.params, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.filterwarnings("error:the gradient could not be compiled", "error:a step cannot be captured")
@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_users_in_bf16_twice_the_same_bits(name, compiles):
    steps = None if compiles else 1
    runs = [of_users(name, StackedEngine, dtype=torch.float32, num_steps=steps) for _ in range(2)]
    for one in runs:
        one.run(2)
    assert type(runs[0].engine.network).__name__ == MODELS[name][2]
    assert torch.equal(runs[0].server.params, runs[1].server.params)
    exact = of_users(name, SequentialEngine)
    start = exact.server.params.clone()
    exact.run(2)
    error = relative_error(runs[0].server.params.double() - start, exact.server.params - start)
    print(name, compiles, error)
    assert error < 0.5  # AMSGrad's first steps are signs: a small gradient may turn


class ManyTokens(nn.Module):
    """Few rows of an embedding, each read thousands of times in a step: sums by atomics would differ."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(8, 64), nn.Linear(64, 8)
        self.place = nn.Parameter(torch.zeros(256, 64))  # has no stacked form of its own

    def forward(self, x):
        return self.out(torch.tanh(self.table(x) + self.place))


@pytest.mark.filterwarnings("error:the gradient could not be compiled", "error:a step cannot be captured")
def test_a_compiled_gradient_of_an_embedding_repeats():
    tokens = np.random.default_rng(0).integers(0, 8, (400, 257))
    samples = as_samples((tokens[:, :-1], tokens[:, 1:]), GPU, torch.float32)

    def trained():
        torch.manual_seed(0)
        engine = StackedEngine(ManyTokens(), METHODS["fedlada"].method(), samples, None, device=GPU)
        clients = [np.arange(40 * client, 40 * client + 40) for client in range(10)]
        work = LocalWork(batch_size=20, epochs=4)
        plan = Plan(clients=clients, cohorts=FixedSize(10), work=work, schedule=as_schedule(0.01, 1.0))
        return Simulation(engine, plan)

    runs = [trained() for _ in range(3)]
    for one in runs:
        one.run(3)
        assert "its gradient to be compiled" in one.engine.why
        assert [fast.__name__ for fast in one.engine.network.fast.values()] == ["fast"]
    assert all(torch.equal(runs[0].server.params, one.server.params) for one in runs[1:])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_kernel_of_lstm_is_what_torch_computes(bidirectional):
    """Outputs and gradients of three clients under vmap, in float32 by the kernel, in float64 written out."""
    torch.manual_seed(0)
    layer = nn.LSTM(5, 33, 2, bidirectional=bidirectional, batch_first=True, device=GPU, dtype=torch.float64)
    x, start = (torch.randn(*size, device=GPU, dtype=torch.float64) for size in ((3, 7, 11, 5), (2, 4, 7, 33)))
    hx = [one[: 2 * (1 + bidirectional)] for one in start]
    weights = [torch.stack([one + 0.1 * i for i in range(3)]).detach() for one in layer._flat_weights]

    def score(weights, x, hx):
        out, hidden, cell = recurrent("lstm", x, hx, weights, True, 2, 0.0, True, bidirectional, True)
        return (out * out).sum() + hidden.sum() + (cell * hidden).sum()

    both = []
    for dtype in (torch.float32, torch.float64):
        assert _is_fused("lstm", x.to(dtype)) == (dtype == torch.float32)
        given = [one.to(dtype) for one in weights], x.to(dtype), [one.to(dtype) for one in hx]
        gradient = torch.func.grad_and_value(score, argnums=(0, 1))
        both.append(torch.utils._pytree.tree_leaves(torch.func.vmap(gradient, in_dims=(0, 0, None))(*given)))
    for fused, exact in zip(*both, strict=True):
        torch.testing.assert_close(fused.double(), exact, rtol=2e-3, atol=2e-3 * float(exact.abs().max()))


def test_masks_are_the_same_on_both_devices():
    for shape in ((7, 5), (64, 3, 9, 9)):
        masks = [
            CounterDropout(torch.tensor(-5, device=place), Elements()).keep(shape, place, 0.3).cpu()
            for place in (GPU, CPU)
        ]
        assert torch.equal(*masks)
