"""Models, losses, methods and schedules that a stacked engine could get wrong without noticing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import fedlada
from fedlada.data import Given, as_samples
from fedlada.engines import StackedEngine, choose_engine
from fedlada.engines.stacked.choice import choose_network
from fedlada.engines.stacked.networks import LayeredNetwork
from fedlada.engines.stacked.not_stackable import NotStackable
from fedlada.federation.randomness import bits, permutation
from fedlada.federation.schedules import WarmUp
from fedlada.methods.local import ClipNorm
from fedlada.methods.testing.attacks import LabelFlip
from fedlada.methods.testing.observed import depends_on_order, ignores_zeros
from fedlada.models.flat import FlatModel
from method_table import METHODS
from tasks import blobs, small_net

EVEN = Given(indices=[range(start, start + 24) for start in range(0, 120, 24)])


def both(model, data, tolerance=1e-10, **options):
    """The server's parameters by both engines."""
    values = {"method": METHODS["fedavg"].method(), "partition": EVEN, "rounds": 3, "lr": 0.05, "batch_size": 8}
    values |= {"dtype": torch.float64, "device": "cpu"} | options
    sequential, stacked = (fedlada.simulate(model, data, engine=name, **values) for name in ("sequential", "stacked"))
    torch.testing.assert_close(stacked.server.params, sequential.server.params, rtol=tolerance, atol=tolerance)
    return sequential, stacked


@dataclass(frozen=True)
class RemembersParams(fedlada.LocalTransform):
    """Its new state is the parameters before the step: the very tensor that is about to be overwritten."""

    def begin(self, shared, kept, like):
        return {"last": torch.zeros_like(like)}

    def apply(self, update, local, step):
        return update + 0.1 * (step.params - local["last"]), {"last": step.params}


@dataclass(frozen=True)
class RemembersTwo(fedlada.LocalTransform):
    """One state becomes the other."""

    def begin(self, shared, kept, like):
        return {"now": torch.zeros_like(like), "before": torch.zeros_like(like)}

    def apply(self, update, local, step):
        return update + 0.3 * local["before"], {"now": update, "before": local["now"]}


@dataclass(frozen=True)
class RemembersLook(fedlada.LocalTransform):
    """What it saw when it looked ahead is a state, and is used when the gradient is there."""

    def begin(self, shared, kept, like):
        return {"seen": torch.zeros_like(like)}

    def look(self, point, local, step, gradient_at):
        seen = gradient_at(point)
        return point - 0.1 * seen, {"seen": seen}

    def apply(self, update, local, step):
        return update + 0.5 * local["seen"], local


@pytest.mark.parametrize("transform", [RemembersParams(), RemembersTwo(), RemembersLook()])
def test_states_that_are_old_values(transform):
    method = fedlada.FederatedMethod(name="own", local=(transform,), server=fedlada.server.SGD(lr=1.0))
    both(small_net(), blobs(), method=method, partition=EVEN)


class OwnCrossEntropy(nn.CrossEntropyLoss):
    """It may have another forward pass, so only its weights are known."""


def test_losses_are_known_by_what_they_are_not_by_a_few_samples():
    x, y = blobs()
    order = np.argsort(y, kind="stable")  # the first samples are all of one class
    x, y = x[order], y[order]
    weighted = OwnCrossEntropy(weight=torch.tensor([1.0, 5.0, 20.0]).double())
    both(small_net(), (x, y), loss=weighted)  # batches of one size: computed batch by batch
    with pytest.warns(UserWarning, match="its loss is not a mean over samples"):
        both(small_net(), (x, y), loss=weighted, batch_size=7)
    mixed = np.random.default_rng(0).permutation(len(y))
    both(small_net(), (x[mixed], y[mixed]), loss=nn.CrossEntropyLoss(ignore_index=2), batch_size=7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss, partial(nn.CrossEntropyLoss, label_smoothing=0.1), nn.NLLLoss], ids=range(3)
)
def test_classes_may_weigh_more_and_targets_be_ignored(loss, dtype):
    """The weights are in single precision, whatever the model is in."""
    x, y = blobs()
    y[:30] = -100
    y = y[np.random.default_rng(0).permutation(len(y))]
    made = nn.Sequential(small_net(), nn.LogSoftmax(dim=-1))
    for weight in (None, torch.tensor([1.0, 5.0, 20.0], dtype=dtype)):
        _, stacked = both(made, (x, y), loss=loss(weight=weight), batch_size=7, dtype=dtype, tolerance=1e-6)
        assert stacked.engine == "stacked"


def masked(output, y):
    counts = y != -999
    return ((output[:, 0] - y) ** 2 * counts).sum() / counts.sum().clamp(min=1)


def weighted_by_target(output, y):
    return (y[:, 1] * (output[:, 0] - y[:, 0]) ** 2).sum() / y[:, 1].sum()


def of_positions(output, y):
    return nn.functional.cross_entropy(output.view(-1, 3), y.flatten())


def own_cross_entropy(output, y):
    return nn.functional.cross_entropy(output, y)


def own_targets(loss):
    """In which one sample of 120 is another than all others."""
    random = np.random.default_rng(0)
    if loss is of_positions:
        y = random.integers(0, 3, size=(120, 2))
        y[77, 0] = -100
        return y
    y = random.normal(size=120)
    if loss is masked:
        y[77] = -999
        return y
    weights = np.ones(120)
    weights[77] = 50
    return np.stack([y, weights], axis=1)


@pytest.mark.parametrize("loss", [masked, weighted_by_target, of_positions])
def test_a_single_target_may_weigh_more_although_it_is_not_on_trial(loss):
    x, y = np.random.default_rng(1).normal(size=(120, 4)), own_targets(loss)
    model = nn.Linear(4, 6 if loss is of_positions else 1)
    _, stacked = both(model, (x, y), loss=loss)
    assert stacked.engine == "stacked"  # batch by batch
    with pytest.warns(UserWarning, match="its loss is not a mean over samples"):
        both(model, (x, y), loss=loss, batch_size=7)


def test_a_batch_of_ignored_targets_alone_has_no_mean():
    """As in torch: no loss, and a gradient of zeros."""
    x, y = blobs()
    y[:24] = 2
    runs = both(small_net(), (x, y), loss=nn.CrossEntropyLoss(ignore_index=2), batch_size=7)
    assert [run.history["train_loss"] for run in runs] == [[None] * 3] * 2


def test_targets_of_which_few_count_are_stacked():
    x, y = blobs(num_samples=1200)
    y[np.arange(1200) % 20 > 0] = -100
    halves = Given(indices=[range(600), range(600, 1200)])
    _, stacked = both(small_net(), (x, y), partition=halves, batch_size=60)
    assert stacked.engine == "stacked"


def test_chosen_and_flipped_targets_of_a_loss_of_ones_own_are_stacked():
    x, y = blobs()
    _, stacked = both(small_net(), (x, y), loss=own_cross_entropy, attack=LabelFlip(share=0.3), client_test=0.25)
    assert stacked.engine == "stacked"


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3 * 5)

    def forward(self, x):
        return self.inner(x).view(-1, 3, 5)


def test_ignored_positions_do_not_count():
    x, _ = blobs()
    y = np.random.default_rng(0).integers(0, 3, (120, 5))
    y[60:, 2:] = -100
    both(Positions(), (x, y), batch_size=7)


class DropsPath(nn.Module):
    """Draws a number in each forward pass, and seldom does anything with it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x) * (torch.rand(len(x), 1) > 0.001)


def test_rare_random_numbers_are_noticed():
    with pytest.warns(UserWarning, match="it draws random numbers in its forward pass"):
        both(DropsPath(), blobs())


def test_chunks_with_batches_of_different_widths():
    x, y = blobs()
    for sizes in ((3, 3, 10, 10), (1, 1, 10, 10)):
        starts = np.cumsum([0, *sizes])
        clients = [np.arange(start, end) for start, end in pairwise(starts)]
        values = {"partition": Given(indices=clients), "batch_size": 5, "rounds": 3, "lr": 0.05}
        values["method"] = fedlada.recipes.fedavg()
        whole = fedlada.simulate(small_net(), (x, y), engine="sequential", dtype=torch.float64, device="cpu", **values)
        simulation = chunked(x, y, clients, places=2)
        simulation.run(3)
        torch.testing.assert_close(simulation.server.params, whole.server.params, rtol=1e-10, atol=1e-10)
        assert set(simulation.engine.stacks) == {(2, 5)}  # room for smaller batches is given back


def chunked(x, y, clients, places):
    from fedlada.data import LocalWork
    from fedlada.federation.cohorts import Everyone
    from fedlada.federation.plan import Plan
    from fedlada.federation.schedules import Constant
    from fedlada.training.simulation import Simulation

    cpu = torch.device("cpu")
    engine = StackedEngine(
        small_net(), fedlada.recipes.fedavg(), as_samples((x, y), cpu, torch.float64), None, device=cpu,
        dtype=torch.float64, max_places=places,
    )  # fmt: skip
    work = LocalWork(batch_size=5, epochs=1)
    return Simulation(engine, Plan(clients=clients, cohorts=Everyone(), work=work, schedule=Constant(0.05)))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [(lambda own: own, [0.1, 0.05, 0.025, 0.0125]), (lambda own: WarmUp(own, 2), [0.05, 0.05, 0.025, 0.0125])],
    ids=["alone", "inside one of ours"],
)
def test_schedules_that_look_at_what_happened(schedule, expected):
    x, y = blobs()
    rates = {}
    for engine in ("sequential", "stacked"):
        state = {"lr": 0.1}

        def halve(_simulation, _row, state=state):
            state["lr"] /= 2

        result = fedlada.simulate(
            small_net(), (x, y), engine=engine, rounds=4, lr=schedule(lambda _, state=state: state["lr"]),
            callbacks=[halve], method="fedavg", device="cpu",
        )  # fmt: skip
        rates[engine] = result.history["lr"]
    assert rates["stacked"] == rates["sequential"] == expected


def test_schedules_that_end():
    table = [0.1, 0.05]
    both(small_net(), blobs(), rounds=2, lr=lambda round: table[round - 1])


class WithFrozenNorm(nn.Module):
    """A frozen, pretrained part with running statistics, in evaluation mode."""

    def __init__(self, bare):
        super().__init__()
        self.norm = nn.BatchNorm1d(4).requires_grad_(False).eval()
        self.inner = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3)) if bare else None

    def forward(self, x):
        out = self.inner(self.norm(x))
        return out if self.scale is None else out * self.scale


@pytest.mark.parametrize("bare", [False, True])
def test_frozen_parts_stay_in_evaluation_mode_after_an_evaluation(bare):
    x, y = blobs()
    model = WithFrozenNorm(bare)
    both(model, (x, y), test=(x, y))
    assert (model.norm.running_mean == 0).all()


def test_an_empty_cohort_in_chunks():
    x, y = blobs()
    simulation = chunked(x, y, [np.arange(10), np.arange(10, 20)], places=1)
    from fedlada.federation.cohorts import Unreliable

    object.__setattr__(simulation.plan, "unreliable", Unreliable(dropout=1.0))
    simulation.run(1)
    assert simulation.history[0]["train_loss"] is None


class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def __copy__(self):
        raise TypeError("not to be copied")

    def forward(self, x):
        return self.inner(x)


def test_what_no_form_foresaw_runs_another_way():
    both(Stubborn(), blobs())


class Constant32(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x - torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_a_model_that_does_not_run_in_bf16_is_noticed_at_once():
    x, y = blobs()
    cpu = torch.device("cpu")
    flat = FlatModel(Constant32(), cpu)
    samples = as_samples((x, y), cpu, torch.float32)
    choose_network(flat, samples, nn.functional.cross_entropy, torch.float32)
    with pytest.raises(NotStackable, match="dtype"):
        choose_network(flat, samples, nn.functional.cross_entropy, torch.bfloat16)


def test_relu_in_place_keeps_the_fast_form():
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1, bias=False),
        nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(inplace=True),
        nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Linear(8, 3),
    )  # fmt: skip
    both(model, blobs())
    cpu = torch.device("cpu")
    engine = choose_engine(
        "stacked", model, METHODS["fedavg"].method(), as_samples(blobs(), cpu, torch.float32), None, device=cpu
    )
    assert isinstance(engine.network, LayeredNetwork)


def test_the_log_says_why_the_fast_form_was_not_taken():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 3))

        def forward(self, x):
            return x @ self.weight

    cpu = torch.device("cpu")
    engine = choose_engine(
        "stacked", Bare(), METHODS["fedavg"].method(), as_samples(blobs(), cpu, torch.float32), None, device=cpu
    )
    assert "not layer by layer: Bare has no stacked form" in engine.why


@dataclass(frozen=True)
class RemembersViews(fedlada.LocalTransform):
    """Its states share their memory with what is about to be overwritten, and are other tensors."""

    def begin(self, shared, kept, like):
        return {"last": like.clone(), "before": like.clone()}

    def apply(self, update, local, step):
        states = {"last": step.params.detach(), "before": local["last"].view_as(local["last"])}
        return update - 3 * (step.params - local["last"]) + 0.1 * local["before"], states


@dataclass(frozen=True)
class ReturnsInAnotherOrder(fedlada.LocalTransform):
    """A dict is known by its names."""

    def init_shared(self, params):
        return {"mean": torch.zeros_like(params), "scale": torch.ones_like(params)}

    def init_kept(self, params):
        return {"own": torch.zeros_like(params), "factor": torch.ones_like(params)}

    def apply(self, update, local, step):
        return step.shared["scale"] * step.kept["factor"] * update + 0.5 * step.shared["mean"] + step.kept["own"], local

    def finish(self, local, done, step):
        return {}, {"factor": 0.9 * step.kept["factor"], "own": 0.1 * done.delta}

    def merge(self, shared, mean, round):
        return {"scale": 0.9 * shared["scale"], "mean": round.delta / (round.lr * round.num_steps)}


@dataclass(frozen=True)
class TakesAMean(fedlada.LocalTransform):
    """Zeros after the parameters would change it."""

    def apply(self, update, local, step):
        return update - update.mean(dim=-1, keepdim=True), local


@dataclass(frozen=True)
class DividesByItsState(fedlada.LocalTransform):
    """Zeros after the parameters become NaN there, and a norm of all of them would be NaN."""

    def begin(self, shared, kept, like):
        return {"sum": torch.zeros_like(like)}

    def apply(self, update, local, step):
        total = local["sum"] + update.abs()
        moved = update / total
        return moved / torch.linalg.vector_norm(moved, dim=-1, keepdim=True), {"sum": total}


@dataclass(frozen=True)
class TakesADeclaredMean(TakesAMean):
    elementwise = True


TRANSFORMS = [
    (RemembersViews(),),
    (ReturnsInAnotherOrder(),),
    (TakesAMean(),),
    (TakesADeclaredMean(),),
    (DividesByItsState(),),
    (fedlada.local.AMSGrad(), fedlada.local.ClipNorm(max_norm=1.0)),
    (fedlada.local.WeightDecay(strength=0.1), fedlada.local.ClipNorm(max_norm=1.0), fedlada.local.AMSGrad()),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_states_and_vectors_that_are_easily_mistaken(transform):
    own = fedlada.FederatedMethod(name="own", local=transform, server=fedlada.server.SGD())
    both(small_net(), blobs(), method=own, rounds=4)


def test_a_rare_class_may_weigh_more_although_no_sample_on_trial_has_it():
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 4))
    y = np.zeros(120, dtype=np.int64)
    y[[5, 50, 77]] = 1
    weight = torch.tensor([1.0, 20.0], dtype=torch.float64)
    both(nn.Linear(4, 2), (x, y), loss=lambda output, y: nn.functional.cross_entropy(output, y, weight=weight))


def test_a_loss_that_fails_on_trial_runs_alone():
    weight = torch.tensor([1.0, 2.0, 3.0])
    loss = lambda output, y: nn.functional.cross_entropy(output, y, weight=weight)  # noqa: E731  (float32 alone)

    def strict(output, y):
        assert output.dtype == torch.float32
        return nn.functional.cross_entropy(output, y)

    with pytest.warns(UserWarning, match="its loss cannot be tried in float64: AssertionError|assert"):
        fedlada.simulate(small_net(), blobs(), loss=strict, method="fedavg", rounds=1, engine="stacked")
    with pytest.warns(UserWarning, match="its loss cannot be tried in float64: expected scalar type Double"):
        fedlada.simulate(
            small_net(), blobs(), loss=loss, method=METHODS["fedavg"].method(), lr=0.05, rounds=1, engine="stacked"
        )


class Flipped(torch.utils.data.Dataset):
    """Every image comes out another way each time."""

    def __init__(self):
        self.x, self.y = blobs()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = torch.as_tensor(self.x[index])
        return (x if torch.rand(()) < 0.5 else x.flip(-1)), int(self.y[index])


@dataclass(frozen=True)
class Noisy(fedlada.LocalTransform):
    def apply(self, update, local, step):
        return update + 0.1 * torch.randn_like(update), local


@dataclass(frozen=True)
class NoisyOfSomeSize(fedlada.LocalTransform):
    """Fails on the few parameters of a trial, behind its noise."""

    def apply(self, update, local, step):
        noise = torch.randn_like(update)
        return update + 0.1 * noise * (update.abs() >= update.abs().topk(10, dim=-1).values[..., -1:]), local


def test_noise_is_noticed_where_a_trial_fails_behind_it():
    noisy = fedlada.FederatedMethod(name="noisy", local=(NoisyOfSomeSize(),), server=fedlada.server.SGD())
    with pytest.warns(UserWarning, match="a transform of noisy draws random numbers"):
        both(small_net(), blobs(), method=noisy)


def test_what_each_client_draws_alone_is_not_stacked_and_goes_on_to_the_same_bits(tmp_path):
    noisy = fedlada.FederatedMethod(name="noisy", local=(Noisy(),), server=fedlada.server.SGD())
    plain = METHODS["fedavg"].method()
    for data, method, why in (
        (Flipped(), plain, "its samples are drawn"),
        (blobs(), noisy, "a transform of noisy draws"),
    ):
        with pytest.warns(UserWarning, match=f"{why}.*, which each client d.* alone"):
            sequential, stacked = both(small_net(), data, method=method)
        assert stacked.history["train_loss"] == sequential.history["train_loss"]
    folder = tmp_path / "run"
    for rounds in (2, 3):
        values = {"method": plain, "partition": EVEN, "lr": 0.05, "batch_size": 8, "dtype": torch.float64}
        again = fedlada.simulate(small_net(), Flipped(), rounds=rounds, device="cpu", out=folder, **values)
    alone = fedlada.simulate(small_net(), Flipped(), rounds=3, device="cpu", **values)
    assert again.history["train_loss"] == alone.history["train_loss"]


def test_a_full_gpu_says_nothing_of_the_model():
    class Hungry(nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("CUDA out of memory")

    flat = FlatModel(Hungry(4, 3), torch.device("cpu"), torch.float64)
    samples = as_samples(blobs(), flat.vector.device, torch.float64)
    with pytest.raises(torch.OutOfMemoryError):
        choose_network(flat, samples, nn.functional.cross_entropy, torch.float64)


class RootMean(fedlada.LocalTransform):
    """Zeros after the parameters would change its means: of what it looks at, remembers and receives."""

    def init_shared(self, params):
        return {"d": torch.zeros_like(params)}

    def merge(self, shared, mean, round):
        return {"d": round.delta}


def scaled(vector, least=0.0):
    return vector / (vector.square().mean(dim=-1, keepdim=True).sqrt() + least)


class LooksByMean(RootMean):
    def look(self, point, local, step, gradient_at):
        return point + 0.1 * scaled(gradient_at(point)), local


class RemembersByMean(RootMean):
    def init_kept(self, params):
        return {"m": torch.zeros_like(params)}

    def begin(self, shared, kept, like):
        return {"m": scaled(kept["m"], 1e-3)}

    def apply(self, update, local, step):
        return update + 0.1 * local["m"], local

    def finish(self, local, done, step):
        return {}, {"m": done.delta}


class ReceivesByMean(RootMean):
    def apply(self, update, local, step):
        return update + 0.1 * scaled(step.shared["d"], 1e-3), local


class Drifts(fedlada.LocalTransform):
    """A number that is added to all parameters would be added to zeros after them too."""

    def init_shared(self, params):
        return {"b": torch.zeros(1, dtype=params.dtype, device=params.device)}

    def merge(self, shared, mean, round):
        return {"b": round.delta.mean(dim=-1, keepdim=True)}

    def apply(self, update, local, step):
        moved = update + step.shared["b"]
        return moved / (1 + moved.norm(dim=-1, keepdim=True)), local


@pytest.mark.parametrize("transform", [LooksByMean(), RemembersByMean(), ReceivesByMean(), Drifts()])
def test_zeros_after_the_parameters_would_count(transform):
    own = fedlada.FederatedMethod(name="own", local=(transform,), server=fedlada.server.SGD())
    _, stacked = both(small_net(), blobs(), method=own, rounds=4)
    assert stacked.engine == "stacked"


class LooksAtSome(fedlada.LocalTransform):
    def look(self, point, local, step, gradient_at):
        return point + 0.1 * gradient_at(point) * (torch.arange(point.shape[-1]) < 20), local


class ReceivesSome(RootMean):
    def apply(self, update, local, step):
        return update + step.shared["d"] * (torch.arange(update.shape[-1]) < 20), local


@pytest.mark.parametrize("transform", [LooksAtSome(), ReceivesSome()])
def test_positions_count_in_what_is_looked_at_and_received(transform):
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    x, y = torch.randn(120, 2, 4, 4, generator=torch.Generator().manual_seed(0)), blobs()[1]
    own = fedlada.FederatedMethod(name="own", local=(transform,), server=fedlada.server.SGD())
    with pytest.warns(UserWarning, match="order of the parameters|depends on the order"):
        both(net, (x, y), method=own)


class OfOneLength(fedlada.LocalTransform):
    def apply(self, update, local, step):
        return 1e6 * update / torch.linalg.vector_norm(update, dim=-1, keepdim=True), local


def test_the_rounding_of_a_long_norm_is_not_taken_for_an_order():
    own = fedlada.FederatedMethod(name="own", local=(OfOneLength(),), server=fedlada.server.SGD())
    params = torch.zeros(2**21)
    params[: 2**20] = 1e4  # large gradients, which in float32 leave little room for those after them

    def reversed(vector):
        return vector.flip(-1)

    assert not depends_on_order(own, params, reversed, reversed)


CONV = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
IMAGES = torch.randn(120, 2, 4, 4, generator=torch.Generator().manual_seed(0))


class Later(fedlada.LocalTransform):
    """Takes a moderate update from the fourth round on."""

    def init_shared(self, params):
        return {"round": params[:1] * 0}

    def apply(self, update, local, step):
        return torch.where(step.shared["round"] >= 3, self.later(update), update), local

    def merge(self, shared, mean, round):
        return {"round": shared["round"] + 1}


class SomeLater(Later):
    def later(self, update):
        return torch.cat([update[..., :20] * 0, update[..., 20:]], dim=-1)


class BackwardsLater(Later):
    def later(self, update):
        return update.flip(-1)


class ByMeanLater(Later):
    def later(self, update):
        return 0.1 * update / update.abs().mean(dim=-1, keepdim=True)


class ByRootLater(Later):
    elementwise = True

    def later(self, update):
        return 10 * update / update.norm(dim=-1, keepdim=True) / update.shape[-1] ** 0.5


class InStepsLater(fedlada.LocalTransform):
    elementwise = True

    def begin(self, shared, kept, like):
        return {"step": like[..., :1] * 0}

    def apply(self, update, local, step):
        moderate = 0.1 * update / update.abs().amax(dim=-1, keepdim=True).add(update.std(dim=-1, keepdim=True))
        return torch.where(local["step"] >= 2, moderate, update), {"step": local["step"] + 1}


def with_late(transform):
    own = fedlada.FederatedMethod(name="own", local=(transform,), server=fedlada.server.SGD())
    return both(CONV, (IMAGES, blobs()[1]), method=own, rounds=6)


@pytest.mark.parametrize(("transform", "operation"), [(SomeLater(), "slice"), (BackwardsLater(), "flip")])
def test_positions_that_count_only_later_are_told_by_the_operation(transform, operation):
    said = rf"may depend \({type(transform).__name__} uses torch's {operation}\) on the order .* elementwise = True"
    with pytest.warns(UserWarning, match=said):
        with_late(transform)


class GatedLater(Later):
    """No `where` shows what it will do."""

    def apply(self, update, local, step):
        gate = (step.shared["round"] >= 3).to(update.dtype)
        return update * (1 - gate) + update.flip(-1) * gate, local


class MaskLater(Later):
    def begin(self, shared, kept, like):
        return {"mask": torch.cat([torch.zeros_like(like[..., :20]), torch.ones_like(like[..., 20:])], dim=-1)}

    def apply(self, update, local, step):
        return torch.where(step.shared["round"] >= 3, local["mask"] * update, update), local


class ClipsSomeLater(ClipNorm):
    """Its parent's declarations are not its own."""

    def init_shared(self, params):
        return {"round": params[:1] * 0}

    def apply(self, update, local, step):
        return torch.where(step.shared["round"] >= 3, update.flip(-1), update), local

    def merge(self, shared, mean, round):
        return {"round": shared["round"] + 1}


@dataclass(frozen=True)
class BranchLater(Later):
    """A branch of Python's, which a trial takes one way."""

    reads: Callable

    def apply(self, update, local, step):
        return (update.flip(-1) if self.reads(step.shared["round"]) else update), local


THREE = torch.tensor([3.0], dtype=torch.float64)
READS = {
    "bool": lambda round: (round >= 3).all(),
    "item": lambda round: round.flatten()[0].item() >= 3,
    "equal": lambda round: torch.equal(round.flatten()[:1], THREE.to(round)),
    "allclose": lambda round: torch.allclose(round, THREE.to(round)),
    "in": lambda round: 3 in round,
    "is_nonzero": lambda round: torch.is_nonzero(round.flatten()[0] // 3),
    "mask": lambda round: len(round[round >= 3]),
    "nonzero": lambda round: (round >= 3).nonzero().numel(),
    "unique": lambda round: torch.cat([round.flatten(), THREE.to(round)]).unique().numel() == 1,
    "text": lambda round: f"{round.flatten()[0]:.0f}" >= "3",
    "repr": lambda round: "3." in repr(round),
    "list": lambda round: max(round.flatten().tolist()) >= 3,
    "slice": lambda round: torch.zeros(9)[: round.flatten()[0].long()].numel() >= 3,
}


@pytest.mark.parametrize("reads", READS.values(), ids=READS)
def test_a_branch_on_a_number_is_not_stacked_without_a_declaration(reads):
    with pytest.warns(UserWarning, match="may depend .BranchLater uses numbers in Python. on the order"):
        with_late(BranchLater(reads))


class BeginsWithABranchLater(MaskLater):
    def begin(self, shared, kept, like):
        late = torch.equal(shared["round"].flatten()[:1], THREE.to(shared["round"]))
        return super().begin(shared, kept, like) if late else {"mask": torch.ones_like(like)}

    def apply(self, update, local, step):
        return local["mask"] * update, local


class NumPyLater(Later):
    """Positions that torch does not see."""

    def apply(self, update, local, step):
        late = np.arange(update.shape[-1]) < 20 * (step.shared["round"].numpy() >= 3)
        kept = torch.from_numpy(1.0 - late.reshape(-1, update.shape[-1])).to(update.dtype)
        return update * kept.reshape(update.shape), local


@pytest.mark.parametrize(
    "transform",
    [GatedLater(), MaskLater(), BeginsWithABranchLater(), NumPyLater(), ClipsSomeLater(max_norm=1.0)],
)
def test_other_positions_that_count_only_later_are_not_stacked(transform):
    with pytest.warns(UserWarning, match="may depend .* on the order"):
        with_late(transform)


class ByNumberLater(Later):
    elementwise = True

    def later(self, update):
        return 50 * update / update.shape[-1]


@pytest.mark.parametrize("transform", [ByMeanLater(), ByRootLater(), ByNumberLater(), InStepsLater()])
def test_the_number_of_parameters_may_count_later(transform):
    _, stacked = with_late(transform)
    assert stacked.engine == "stacked"


@dataclass(frozen=True)
class Masks(fedlada.LocalTransform):
    mask: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask, local


def test_what_every_number_goes_through_alone_keeps_its_zeros():
    params = torch.zeros(5000)
    own = partial(fedlada.FederatedMethod, name="own", server=fedlada.server.SGD())
    assert ignores_zeros(own(local=(RemembersTwo(), Masks(torch.ones(5000)))), params)
    assert not ignores_zeros(own(local=(ByMeanLater(),)), params)
    assert all(ignores_zeros(one.method(), params) for one in METHODS.values())


class Branches(nn.Module):
    """Another computation for some batches."""

    def __init__(self, how):
        super().__init__()
        self.net, self.how = small_net(), how
        self.register_buffer("limit", torch.tensor(1.0))

    def forward(self, x):
        x = x * (2 if self.limit > 0.5 else 1)  # the same for all clients
        if self.how == "sum" and x.sum() > 0:
            x = -x
        if self.how == "item":
            x = x * (1 + float(x.abs().max()))
        return self.net(x)


@pytest.mark.parametrize("how", ["sum", "item"])
def test_a_models_branch_on_a_number_is_each_clients_own(how):
    """Whatever the few samples on trial do: here all of them are alike."""
    x, y = blobs()
    tried, clients = permutation(bits(0, "trial"), len(x))[:6], permutation(bits(0, "parts"), len(x)).reshape(5, -1)
    alike = np.abs(x)
    alike[np.setdiff1d(clients[3], tried)] *= -1
    with pytest.warns(UserWarning, match=f"reads numbers in Python \\({'bool' if how == 'sum' else 'float'}\\)"):
        both(Branches(how), (alike, y), partition=Given(indices=clients))
    assert both(Branches(""), (x, y))[1].engine == "stacked"


@dataclass(frozen=True)
class SkipsLarge(fedlada.LocalTransform):
    """Declared to be what it is not: a client with a large update decides for all."""

    elementwise = True
    ignores_zeros = True

    def apply(self, update, local, step):
        return (update if bool((update.abs() < 10).all()) else torch.zeros_like(update)), local


@pytest.mark.parametrize("model", [nn.Linear(4, 3), small_net()], ids=["in the model's order", "in another"])
def test_a_transforms_branch_on_a_number_is_each_clients_own(model):
    method = fedlada.FederatedMethod(name="own", local=(SkipsLarge(),), server=fedlada.server.SGD())
    x, y = blobs()
    x[:24] *= 50
    with pytest.warns(UserWarning, match="SkipsLarge\\) reads numbers in Python"):
        both(model, (x, y), method=method)


class MaskedSquare(nn.MSELoss):
    """Torch's own are known by their type; this one has another forward pass."""

    def forward(self, input, target):
        return masked(input, target)


def test_a_subclass_of_a_loss_of_torchs_is_tried_like_any_other():
    targets = own_targets(masked)
    with pytest.warns(UserWarning, match="its loss is not a mean over samples"):
        both(small_net(), (blobs()[0], targets), loss=MaskedSquare(), batch_size=7)


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 5.0]))])
def test_weights_of_positions_are_a_mean_over_samples(loss):
    x, y = blobs()
    _, stacked = both(small_net(), (x, np.eye(3)[y]), loss=loss, batch_size=7)
    assert stacked.engine == "stacked"


class InGroups(nn.Module):
    """Normalises groups of four samples, and smaller batches not at all."""

    def __init__(self):
        super().__init__()
        self.net = small_net()

    def forward(self, x):
        if len(x) >= 4:
            x = torch.cat([part - part.mean(dim=0) for part in x.split(4)])
        return self.net(x)


class ByFrequency(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(40, 6, scale_grad_by_freq=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.table(x).mean(dim=1))


@pytest.mark.parametrize("model", [InGroups(), ByFrequency()])
def test_what_depends_on_the_size_of_a_batch_is_not_filled_up(model):
    x, y = blobs()
    words = np.random.default_rng(0).integers(0, 40, size=(len(x), 5))
    with pytest.warns(UserWarning, match="a layer may mix samples|batches differ in size"):
        both(model, (words if isinstance(model, ByFrequency) else x, y), batch_size=7)


def test_a_resumed_run_fills_up_as_the_whole_one_did(tmp_path):
    """Its first client after the resume has small batches, that before it had a large one."""
    sizes = [0, 80, 90, 104, 120]
    parts = Given(indices=[range(*ends) for ends in pairwise(sizes)])
    values = {"method": "fedavg", "partition": parts, "batch_size": 40, "cohort_size": 1, "engine": "stacked"}
    for seed in range(3):
        whole = fedlada.simulate(small_net(), blobs(), rounds=6, seed=seed, **values)
        for rounds in (3, 6):
            again = fedlada.simulate(small_net(), blobs(), rounds=rounds, seed=seed, out=tmp_path / f"{seed}", **values)
        assert torch.equal(again.server.params, whole.server.params)


class StoresFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.features = nn.Linear(4, 8), nn.Linear(8, 3), None

    def forward(self, x):
        self.features = torch.tanh(self.first(x))
        return self.last(self.features)


@pytest.mark.parametrize("was_called", [False, True])
def test_a_model_may_store_its_features(was_called):
    model = StoresFeatures()
    if was_called:
        model(torch.randn(2, 4))
    _, stacked = both(model, blobs())
    assert stacked.engine == "stacked"


class LateAverage(nn.Module):
    """A buffer that begins to change after some batches."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = small_net(), 0
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        out = self.net(x)
        self.calls += self.training
        if self.calls > 30:
            self.mean.mul_(0.9).add_(out.detach().mean(dim=0), alpha=0.1)
        return out - self.mean


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_buffer_that_changes_later_is_refused_then(engine):
    with pytest.raises(ValueError, match="the forward pass changes the buffer 'mean'"):
        fedlada.simulate(LateAverage(), blobs(), partition=EVEN, rounds=15, batch_size=8, engine=engine)
