"""Statistics of clients' answers, and the uploads and weights that combiners get."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, replace

import pytest
import torch
from fedlada.combine import Coming, Extrapolated, GeometricMedian, Krum, Mean, Median, NormBound, Private, TrimmedMean

from fedlada import Combiner, Kept, Upload, average
from fedlada.engines import tally
from fedlada.engines.tally import Tally, answer_of, square_norm
from fedlada.federation.plan import Assignment


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 1, 7, 20, 41])
def test_square_norms_are_summed_in_float64(size, dtype, monkeypatch):
    """In blocks, of which the last may be shorter; a float32 sum would have an error of 1e-8 and more."""
    monkeypatch.setattr(tally, "NORM_BLOCK", 20)
    vector = (1e-3 * torch.randn(size, generator=torch.Generator().manual_seed(0))).to(dtype)
    expected = math.fsum(value * value for value in vector.double().tolist())
    assert square_norm(vector) == pytest.approx(expected, rel=1e-14, abs=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows(value):
    vector = torch.zeros(tally.NORM_BLOCK + 3)
    vector[-1] = value
    assert not math.isfinite(square_norm(vector))


SIZE, NUM_CLIENTS, REFUSED = 12_347, 40, 4
"""Of an odd size, by which its vectors are found."""


def answers(counts=None):
    """Those of clients with weights 1, 2, ...; one is refused. `counts` gets the uploads that exist at each."""
    for client in range(NUM_CLIENTS):
        upload = Upload(torch.full((SIZE,), float(client)), ())
        if client == REFUSED:
            upload.delta[0] = math.nan
        if counts is not None:
            counts.append(sum(1 for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == (SIZE,)))
        yield answer_of(Assignment(client, [None], [None], 1.0 + client, 0), upload, Kept(()), 0.0)


@dataclass(frozen=True)
class TotalFirst(Combiner):
    """Reads all weights before the first upload."""

    def combine(self, uploads, weights=None):
        total = sum(weights)
        return Upload(sum(weight / total * one.delta for one, weight in zip(uploads, weights, strict=True)), ())


@dataclass(frozen=True)
class SubclassOfMean(Mean):
    """Inherits all declarations of the mean."""

    def combine(self, uploads, weights=None):
        return TotalFirst().combine(uploads, weights)


@dataclass(frozen=True)
class Greedy(Combiner):
    """Changes everything that it was given."""

    def combine(self, uploads, weights=None):
        mean = average(uploads, weights)
        for one in uploads:
            one.delta.zero_()
        weights.clear()
        return mean


@pytest.mark.parametrize("combiner", [TotalFirst(), SubclassOfMean(), Greedy()])
def test_an_own_combiner_begins_with_all_weights(combiner):
    mine, counted = Tally(), Tally()
    found, expected = mine.combined(answers(), combiner), counted.combined(answers(), Mean())
    torch.testing.assert_close(found.delta, expected.delta)
    assert mine.weights == counted.weights == [1.0 + client for client in range(NUM_CLIENTS) if client != REFUSED]
    assert mine.refused == [REFUSED]


def test_nobody_is_asked_to_combine_nothing():
    assert Tally().combined(iter(()), TotalFirst()) is None
    assert Tally().combined(iter(()), Mean()) is None


COMING = Coming(8.0, lambda _, like: torch.zeros_like(like))
STREAMING = [
    Mean(),
    Extrapolated(),
    NormBound(max_norm=1.0),
    NormBound().for_round([{"delta": [1.0]}]),
    Private(1.0, noise_multiplier=1.0).for_round([], COMING),
]


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("combiner", STREAMING, ids=lambda one: type(one).__name__)
def test_a_built_in_mean_holds_one_upload_at_a_time(combiner):
    """Beside its sum, the next one that comes and a copy or two."""
    counts = []
    Tally().combined((replace(one, work=replace(one.work, weight=1.0)) for one in answers(counts)), combiner)
    assert max(counts) <= 8


@pytest.mark.usefixtures("only_new_objects")
@pytest.mark.parametrize("combiner", [TrimmedMean(), Median(), Krum(), GeometricMedian(), NormBound(), TotalFirst()])
def test_other_combiners_hold_each_upload_once(combiner):
    counts = []
    Tally().combined((replace(one, work=replace(one.work, weight=1.0)) for one in answers(counts)), combiner)
    assert NUM_CLIENTS - 2 <= max(counts) <= NUM_CLIENTS + 4
