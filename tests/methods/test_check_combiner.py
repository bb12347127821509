"""`check_combiner` accepts what the library has, and names what an own combiner does wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from fedlada.combine import Coming, Extrapolated, GeometricMedian, Krum, Mean, Median, NormBound, Private, TrimmedMean
from fedlada.testing import check_combiner

from fedlada import Combiner, FederatedMethod, LocalTransform, Upload, average, recipes, simulate
from fedlada.data import IID
from fedlada.methods.combine import gathered
from fedlada.methods.combine.gathered import by_column
from fedlada.methods.combine.named import as_combiner
from fedlada.methods.server import SGD
from own_combiners import TotalFirst
from tasks import blobs, small_net

BUILT_IN = [
    Mean(),
    Extrapolated(),
    NormBound(),
    NormBound(max_norm=10.0),
    TrimmedMean(),
    Median(),
    Krum(),
    GeometricMedian(),
]


@pytest.mark.parametrize("method", [recipes.fedavg(), recipes.fedlada(), recipes.scaffold()], ids=lambda one: one.name)
@pytest.mark.parametrize("combiner", BUILT_IN, ids=repr)
def test_built_in_combiners_pass(combiner, method):
    check_combiner(combiner, method)


def test_one_round_of_private_passes_without_noise():
    private = Private(10.0, noise_multiplier=1.0)
    released = private.for_round([], Coming(5.0, lambda _, like: torch.zeros_like(like)))
    check_combiner(released, averages=False)


def test_what_holds_a_tensor_or_draws_passes():
    check_combiner(Masked(torch.arange(7) % 2 == 0), averages=False)
    check_combiner(Own(lambda uploads, weights: with_delta(average(uploads, weights), torch.randn_like)))


@dataclass(frozen=True, eq=False)
class Masked(Combiner):
    mask: torch.Tensor

    def combine(self, uploads, weights=None):
        return with_delta(average(uploads, weights), lambda delta: delta * self.mask)


@dataclass(frozen=True)
class Own(Combiner):
    function: Callable

    def combine(self, uploads, weights=None):
        return self.function(uploads, weights)


def with_delta(upload, change):
    return Upload(change(upload.delta), upload.extra)


def changes_in_place(uploads, weights):
    total = uploads[0].extra[0]["v"]
    for one in uploads[1:]:
        total += one.extra[0]["v"]
    return Upload(average(uploads, weights).delta, ({"v": total / len(uploads)}, {}))


def changes_weights(uploads, weights):
    result = average(uploads, weights)
    weights[0] = 0.0
    return result


def sums(uploads, weights):
    mean = average(uploads, weights)
    return with_delta(mean, lambda delta: delta * (len(uploads) if weights is None else sum(weights)))


def first_counts_twice(uploads, weights):
    given = [1.0] * len(uploads) if weights is None else weights
    return average(uploads, [2 * given[0], *given[1:]])


WRONG = {
    "no upload": (
        lambda uploads, weights: average(uploads, weights).delta,
        r"Own must return an Upload with the vectors delta \[6\] in torch.float64, extra.0.v \[6\] in torch.float64; "
        "got Tensor",
    ),
    "a vector lost": (
        lambda uploads, weights: Upload(average(uploads, weights).delta, ()),
        r"Own must return an Upload .* got delta \[6\] in torch.float64$",
    ),
    "in place": (changes_in_place, "Own changes the vector extra.0.v of an upload in place: return new tensors"),
    "weights in place": (changes_weights, "Own changes the list of weights in place: make a new one"),
    "a sum": (sums, "Own depends on the sum of the weights: divide by it"),
    "no weights": (lambda uploads, _: average(uploads), "Own ignores its weights: use them, or raise"),
    "None is something else": (
        lambda uploads, weights: average(uploads, weights or [2.0] + [1.0] * (len(uploads) - 1)),
        "Own must treat weights=None as equal weights",
    ),
    "by place": (first_counts_twice, "Own gives another result if the clients and their weights come in another order"),
    "twice as far": (
        lambda uploads, weights: with_delta(average(uploads, weights), lambda delta: 2 * delta),
        "Own must return the upload that all clients send, if they send the same",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    function, sentence = WRONG[name]
    with pytest.raises(ValueError, match=sentence):
        check_combiner(Own(function))


@dataclass(frozen=True)
class WithoutWeights(Combiner):
    def combine(self, uploads):
        return average(uploads)


@pytest.mark.parametrize(
    ("combiner", "sentence"),
    [
        (Own(WRONG["no upload"][0]), r"Own must return an Upload .* got Tensor"),
        (Own(WRONG["a vector lost"][0]), r"Own must return an Upload .* got delta"),
        (Own(changes_in_place), r"Own changes the vector extra.0.v of an upload in place"),
        (WithoutWeights(), r"has combine\(self, uploads\), which is called as combine\(self, uploads, weights\)"),
    ],
)
def test_a_run_refuses_what_is_no_combiner_before_its_first_round(combiner, sentence):
    with pytest.raises(ValueError, match=sentence):
        simulate(small_net(), blobs(), method="fedlada", combiner=combiner, rounds=1)


def test_a_run_takes_a_combiner_that_does_more_than_average():
    """Laws of a mean, and errors of its own such as for too few clients, are not asked for."""

    def with_six(uploads, weights):
        if len(uploads) < 6:
            raise ValueError("there must be six clients")
        return sums(uploads, weights)

    result = simulate(
        small_net(), blobs(), method="fedlada", combiner=Own(with_six), partition=IID(num_clients=6), rounds=1
    )
    assert result.history[-1]["clients"] == [0, 1, 2, 3, 4, 5]


def test_a_combiner_that_needs_weights_is_named():
    with pytest.raises(ValueError, match="TotalFirst must accept weights=None, which stands for equal weights"):
        check_combiner(TotalFirst())


@dataclass(frozen=True)
class MaskedUpdate(LocalTransform):
    mask: torch.Tensor

    def apply(self, update, local, step):
        return update * self.mask, local


def test_uploads_of_a_method_with_a_mask_are_of_its_length():
    method = FederatedMethod(name="own", local=(MaskedUpdate(torch.ones(40)),), server=SGD())
    check_combiner(Median(), method)


def test_a_combiner_of_ones_own_is_no_name():
    with pytest.raises(ValueError, match=r"'mine:Vote' is none of mean, .*FederatedMethod\(\.\.\., combiner=\.\.\.\)"):
        as_combiner("mine:Vote")


def test_many_uploads_are_compared_in_as_many_numbers_as_few(monkeypatch):
    uploads = [Upload(torch.randn(23, generator=torch.Generator().manual_seed(one)), ()) for one in range(7)]
    sizes = []

    def middle(block):
        sizes.append(block.numel())
        return block.median(dim=0).values

    whole = by_column(uploads, middle).delta
    monkeypatch.setattr(gathered, "NUMBERS", 30)
    assert torch.equal(by_column(uploads, middle).delta, whole)
    assert sizes == [7 * 23, *[28] * 5, 21]


@dataclass(frozen=True)
class RootMean(Combiner):
    """Declares what it is not."""

    is_linear = True

    def combine(self, uploads, weights=None):
        mean = average(uploads, weights)
        return with_delta(mean, lambda delta: delta.sign() * delta.abs().sqrt())


def test_what_is_declared_linear_is_tried_on_shares():
    said = r"RootMean declares is_linear = True, but the results of two shares do not combine to that of all"
    with pytest.raises(ValueError, match=said):
        check_combiner(RootMean(), averages=False)
    with pytest.raises(ValueError, match=said):
        simulate(small_net(), blobs(), method="fedavg", combiner=RootMean(), rounds=1)


def test_a_linear_one_of_ones_own_passes():
    class Same(Mean):
        is_linear = True

    check_combiner(Same())


def test_a_result_in_float64_is_refused_for_a_run_in_float32():
    """The server's parameters would be in float64 from then on, and no resume would take them."""
    wide = Own(lambda uploads, weights: with_delta(average(uploads, weights), torch.Tensor.double))
    said = r"Own must return an Upload with the vectors delta \[6\] in torch.float32.*; got delta \[6\] in torch.float6"
    with pytest.raises(ValueError, match=said):
        check_combiner(wide)
    with pytest.raises(ValueError, match=said):
        simulate(small_net(), blobs(), method="fedavg", combiner=wide, rounds=1)
