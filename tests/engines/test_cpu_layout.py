"""Images with the channels last: used where a model gains and nothing shows, with the usual values."""

from __future__ import annotations

import platform
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fedlada
from fedlada.engines import cpu_layout
from fedlada.engines.cpu_layout import forward_for
from fedlada.engines.evaluation import evaluate, predictions
from fedlada.models.call import call
from fedlada.models.factory import model_factory

USED, POOLS = "_call_with_channels_last", "_call_with_pools"


@pytest.fixture(autouse=True)
def on_x86(monkeypatch):
    """The rule of x86-64, whichever processor this is."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    torch.manual_seed(0)


class Net(nn.Module):
    """Two convolutions; `end` makes the scores of the pooled images `[N, 16, 3, 3]`."""

    def __init__(self, end=lambda net, y: net.out(y.flatten(1)), channels=3):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 8, 3), nn.Conv2d(8, 16, 3)
        self.pool, self.out, self.end = nn.MaxPool2d(2), nn.Linear(144, 4), end

    def forward(self, x):
        y = self.pool(F.relu(self.first(x)))
        y = self.second(y).relu_()
        return self.end(self, F.max_pool2d(y, 2))


class Strict(torch.autograd.Function):
    """Its backward pass is written for the usual layout."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(len(gradient), -1).view(ctx.shape)


def by_data(net, y):
    y.data.view(len(y), -1)[:, :72] = 0
    return net.out(y.flatten(1))


def kept(net, y):
    net.features = y
    return net.out(y.flatten(1))


def read_again(net, y):
    return net.out(y.flatten(1)) + y.sum()


def written(net, y):
    flat = y.reshape(len(y), -1)
    flat.zero_()
    return net.out(F.relu(y).flatten(1))


SUITS = {
    "flatten": Net().end,
    "view": lambda net, y: net.out(y.view(y.size(0), -1)),
    "reshape": lambda net, y: net.out(y.reshape(y.shape[0], -1)),
    "activations": lambda net, y: net.out((0.5 * F.gelu(y) + y * torch.erf(y)).flatten(1)),
    "dropout": lambda net, y: net.out(F.dropout(F.dropout2d(y, 0.2, net.training), 0.1, net.training).flatten(1)),
}
SHOWS = {
    "mean": lambda _, y: y.mean((2, 3)),
    "norm": lambda net, y: net.out(F.group_norm(y, 4).flatten(1)),
    "images returned": lambda _, y: y,
    "images returned beside": lambda net, y: (net.out(y.flatten(1)), y),
    "an object returned": lambda net, y: SimpleNamespace(scores=net.out(y.flatten(1)), images=y),
    "kept by the model": kept,
    "written as data": by_data,
    "a function of the user's": lambda net, y: net.out(Strict.apply(y).flatten(1)),
    "permuted": lambda net, y: net.out(y.permute(0, 2, 3, 1).flatten(1)),
    "a list of images": lambda net, y: net.out(torch.cat([y, y])[: len(y)].flatten(1)),
    "read after its copy": read_again,
    "its copy written": written,
    "without a name": lambda net, y: net.out(torch.from_numpy(y.detach().numpy()).flatten(1)),
    "an operator": lambda net, y: net.out(torch.ops.aten.relu.default(y).flatten(1)),
    "computed again": lambda net, y: net.out(checkpoint(F.relu, y, use_reentrant=False).flatten(1)),
}


def images(channels=3, number=6):
    return torch.randn(number, channels, 18, 18, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "used"), [("lenet", USED), ("pfl-cnn", USED), ("cnn-gn", "call"), ("mlp", "call")])
def test_models_of_this_package(name, used):
    x = torch.randn(2, 3, 32, 32)
    assert forward_for(model_factory(name)(10, input_shape=(3, 32, 32)), x).__name__ == used


@pytest.mark.parametrize(
    ("end", "used"), [*((one, USED) for one in SUITS.values()), *((one, POOLS) for one in SHOWS.values())],
    ids=[*SUITS, *SHOWS],
)  # fmt: skip
def test_used_where_nothing_shows(end, used):
    assert forward_for(Net(end), images()).__name__ == used


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_not_used_where_images_are_lost_from_sight():
    traced = torch.jit.trace(lambda y: y.relu().flatten(1), torch.randn(2, 16, 3, 3))
    assert forward_for(Net(lambda net, y: net.out(traced(y))), images()).__name__ == POOLS


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("end", [SUITS["flatten"], SUITS["view"], SUITS["activations"]], ids=["flatten", "view", "act"])
def test_values_and_gradients_are_the_usual_ones(end, channels):
    net, x = Net(end, channels), images(channels)
    forward = forward_for(net, x)
    assert forward.__name__ == USED
    seen = []

    def watched(_module, _given, output):
        seen.append(output.stride(1))
        output.register_hook(lambda gradient: seen.append(gradient.stride(1)))

    net.second.register_forward_hook(watched)
    found, expected = forward(net, x), call(net, x)
    torch.testing.assert_close(found, expected)
    parameters = list(net.parameters())
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert seen == [1, 36, 1, 36], "images and their gradients, in this layout and in the usual one"


def test_a_pool_gets_its_gradient_in_this_layout():
    """In the usual one torch would copy the images twice."""
    x, seen = cpu_layout.with_channels_last(images()).requires_grad_(), []
    with cpu_layout.ChannelsLast():
        pooled = F.max_pool2d(x, 2)
    pooled.register_hook(lambda gradient: seen.append(gradient.stride(1)))
    pooled.flatten(1).sum().backward()
    assert seen == [1]


@pytest.mark.parametrize(
    "x",
    [images().double(), images()[0], images().bfloat16(), {"x": images()}],
    ids=["float64", "one image", "bfloat16", "named"],
)
def test_other_inputs_keep_their_layout(x):
    dtype = torch.float32 if isinstance(x, dict) else x.dtype
    assert forward_for(Net().to(dtype), x).__name__ in (POOLS, "call")


@pytest.mark.parametrize("x", [images(1)[:, 0], {"x": images(1)[:, 0]}], ids=["no channels", "named"])
def test_pools_are_faster_whatever_the_inputs_are(x):
    class Unsqueezed(Net):
        def forward(self, x):
            return super().forward(x.unsqueeze(1))

    assert forward_for(Unsqueezed(channels=1), x).__name__ == POOLS
    with torch.no_grad():
        assert forward_for(Unsqueezed(channels=1), x) is call, "evaluation has no gradients, which the pools need"
        assert forward_for(Net(SHOWS["mean"]), images()) is call


def test_the_choice_does_not_depend_on_random_numbers():
    class Sometimes(Net):
        def forward(self, x):
            y = self.pool(F.relu(self.first(x)))
            y = y if torch.rand(()) < 0.5 else y.mul(2).permute(0, 1, 3, 2)
            return self.out(F.max_pool2d(self.second(y), 2).flatten(1))

    found = set()
    for seed in range(6):
        torch.manual_seed(seed)
        found.add(forward_for(Sometimes(), images()))
    assert len(found) == 1


def test_a_trial_leaves_buffers_as_they_were():
    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += len(x)
            return super().forward(x)

    net = Counting()
    evaluate(net, (images(), torch.zeros(6, dtype=torch.int64)))
    assert net.seen == 6


def test_other_processors_keep_their_layout(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert forward_for(Net(), images()).__name__ == POOLS


def test_compiled_models_are_left_and_run_without_a_word(recwarn):
    """A mode would be recorded with the model, and recorded anew at each call."""
    whole, part = torch.compile(Net(), backend="eager"), Net()
    part.first.compile(backend="eager")
    x, y = images(number=20), torch.arange(20) % 4
    for net in (whole, part):
        assert forward_for(net, x) is call
        fedlada.simulate(net, (x, y), test=(x, y), rounds=1, batch_size=5, lr=0.05, device="cpu")
    assert not [one for one in recwarn if "Dynamo" in str(one.message)]


def test_errors_are_the_models_own():
    net = Net(lambda net, y: net.out(y.flatten()))
    assert forward_for(net, images()) is call
    with pytest.raises(ValueError, match="shapes cannot be multiplied") as found:
        evaluate(net, (images(), torch.zeros(6, dtype=torch.int64)))
    assert isinstance(found.value.__cause__, RuntimeError)


def test_trials_draw_no_random_numbers():
    net = Net(SUITS["dropout"])
    before = torch.get_rng_state()
    forward_for(net, images())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", ["fedavg", "fedlada", "fedsam"])
def test_runs_use_it_in_steps_and_evaluation(method, monkeypatch):
    """They differ from a run in the usual layout by rounding, also with dropout, whose masks are the same."""
    x, y = images(number=40), torch.arange(40) % 4
    sizes = []
    real = cpu_layout.with_channels_last
    monkeypatch.setattr(cpu_layout, "with_channels_last", lambda x: (sizes.append(len(x)), real(x))[1])

    def result():
        torch.manual_seed(0)
        settings = {"cohort_size": 3, "rounds": 2, "batch_size": 4, "lr": 0.05, "device": "cpu"}
        net, own = Net(SUITS["dropout"]), getattr(fedlada.recipes, method)()
        return fedlada.simulate(net, (x, y), test=(x, y), method=own, **settings)

    found = result()
    assert {2, 4, 40} <= set(sizes), "the trial, steps, evaluation"
    assert (predictions(found.model, found_samples(x, y)) >= 0).all()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    del sizes[:]
    other = result()
    assert not sizes
    torch.testing.assert_close(found.server.params, other.server.params, rtol=1e-4, atol=1e-5)
    assert found.history["test_loss"] == pytest.approx(other.history["test_loss"], rel=1e-4)


def found_samples(x, y):
    from fedlada.data.samples import as_samples

    return as_samples((x, y), torch.device("cpu"), torch.float32)
