"""Combiners against NumPy, and against malicious clients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from fedlada.combine import Extrapolated, GeometricMedian, Krum, Mean, Median, NormBound, TrimmedMean, as_combiner

import fedlada
from fedlada import FederatedMethod, Upload, recipes
from fedlada.methods.state import map_tensors
from small_federation import grid_of, strategy_of
from tasks import UNEQUAL, blobs, small_net

RANDOM = np.random.default_rng(0)
DELTAS = RANDOM.standard_normal((9, 6))
MOMENTS = RANDOM.random((9, 6)) + 0.1
WEIGHTS = (RANDOM.random(9) + 0.5).tolist()


def given_to(combiner):
    """As engines give them: a list, or a generator of uploads that are overwritten if the combiner streams."""
    return uploads() if combiner.streams else [map_tensors(torch.clone, one) for one in uploads()]


def uploads(deltas=DELTAS, moments=MOMENTS):
    """From a generator whose uploads are overwritten."""
    place = Upload(torch.zeros(6, dtype=torch.float64), ({"v": torch.zeros(6, dtype=torch.float64)},))
    for delta, v in zip(deltas, moments, strict=True):
        place.delta.copy_(torch.from_numpy(delta))
        place.extra[0]["v"].copy_(torch.from_numpy(v))
        yield place


def trimmed(values, share):
    cut = max(int(share * len(values)), 1)
    return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)


def bounded(values, bound, weights):
    norms = np.linalg.norm(values, axis=1)
    return np.average(values * np.minimum(1, bound / norms)[:, None], axis=0, weights=weights)


def weiszfeld(values, weights, steps=8):
    z = np.median(values, axis=0)
    for _ in range(steps):
        w = np.asarray(weights) / (distances := np.linalg.norm(values - z, axis=1)).clip(
            1e-6 * np.sort(distances)[(len(values) - 1) // 2]
        )
        z = (w[:, None] * values).sum(axis=0) / w.sum()
    return z


def krum(num_bad):
    def scaled(values):
        distances = ((values[:, None] - values[None]) ** 2).sum(axis=2)
        pairs = np.sort(distances[np.tril_indices(len(values), -1)])
        return distances / pairs[len(pairs) // 2]

    nearest = np.sort(scaled(DELTAS) + scaled(MOMENTS), axis=1)[:, 1 : len(DELTAS) - num_bad - 1]
    return nearest.sum(axis=1).argmin()


def learned(values):
    return 1.1 * np.sort(np.linalg.norm(values, axis=1))[(len(values) - 1) // 2]


CASES = {
    "mean": (Mean(), WEIGHTS, lambda values: np.average(values, axis=0, weights=WEIGHTS)),
    "bound": (NormBound(max_norm=2.0), WEIGHTS, lambda values: bounded(values, 2.0, WEIGHTS)),
    "learned bound": (NormBound(factor=1.1), WEIGHTS, lambda values: bounded(values, learned(values), WEIGHTS)),
    "trimmed": (TrimmedMean(share=0.25), None, lambda values: trimmed(values, 0.25)),
    "trimmed at least one": (TrimmedMean(share=0.01), None, lambda values: trimmed(values, 0.01)),
    "median": (Median(), None, lambda values: np.median(values, axis=0)),
    "krum": (Krum(num_bad=2), None, lambda values: values[krum(2)]),
    "geometric median": (GeometricMedian(), WEIGHTS, lambda values: weiszfeld(values, WEIGHTS)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_numpy(name):
    combiner, weights, expected = CASES[name]
    found = combiner.combine(given_to(combiner), weights)
    np.testing.assert_allclose(found.delta.numpy(), expected(DELTAS), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.extra[0]["v"].numpy(), expected(MOMENTS), rtol=0, atol=1e-12)
    assert (found.extra[0]["v"] > 0).all()


@pytest.mark.parametrize("lie", [1e3, 1e30, 3e38])
@pytest.mark.parametrize("combiner", [NormBound(), TrimmedMean(), Median(), Krum(), GeometricMedian()])
def test_one_client_moves_nothing_far(combiner, lie):
    """In float32, where the squares of such numbers are infinite."""
    honest = [map_tensors(torch.Tensor.float, one) for one in map(copy.deepcopy, uploads())]
    liar = map_tensors(lambda vector: torch.full_like(vector, lie), honest[0])
    found = combiner.combine([*honest[:3], liar, *honest[3:]])
    assert found.delta.abs().max() <= abs(DELTAS).max()
    assert found.extra[0]["v"].max() <= 1.3 * MOMENTS.max()
    assert (found.extra[0]["v"] > 0).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9])
def test_the_geometric_median_knows_no_unit(scale):
    """Second moments may begin at 1e-8: three of nine clients lie there too."""
    values = DELTAS.copy()
    values[:3] = 50.0
    found = GeometricMedian().combine(uploads(scale * values)).delta.numpy() / scale
    np.testing.assert_allclose(found, GeometricMedian().combine(uploads(values)).delta.numpy(), rtol=1e-9)
    assert np.linalg.norm(found - DELTAS[3:].mean(axis=0)) < 3
    alike = np.ones_like(DELTAS)
    alike[0] = 5.0
    np.testing.assert_allclose(GeometricMedian().combine(uploads(alike)).delta.numpy(), 1.0, rtol=1e-12)


def test_an_even_median_is_the_mean_of_the_middle_two():
    found = Median().combine([map_tensors(torch.clone, one) for one in uploads(DELTAS[:8], MOMENTS[:8])])
    np.testing.assert_allclose(found.delta.numpy(), np.median(DELTAS[:8], axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("combiner", [TrimmedMean(), Median(), Krum()])
def test_unequal_weights_are_refused_where_they_mean_nothing(combiner):
    with pytest.raises(ValueError, match="weights every client equally: use weights='uniform'"):
        combiner.combine(uploads(), WEIGHTS)


@pytest.mark.parametrize("combiner", ["trimmed-mean", "median", "krum:1"])
def test_unequal_weights_are_refused_before_the_first_round(combiner):
    planned = []

    def rate(round):
        planned.append(round)
        return 0.05

    settings = {"combiner": combiner, "weights": "examples", "cohort_size": None}
    with pytest.raises(ValueError, match="weights every client equally: use weights='uniform'"):
        run(recipes.fedavg(), lr=rate, partition=UNEQUAL, **settings)
    assert planned == []
    equal = [range(start, start + 20) for start in range(0, 100, 20)]
    assert len(run(recipes.fedavg(), partition=[*equal, []], rounds=1, lr=rate, **settings).history) == 1
    assert planned == [1]


def test_unequal_weights_are_refused_before_nodes_are_waited_for():
    grid = grid_of("fedavg", num_nodes=0)
    with pytest.raises(ValueError, match="weights every client equally: use weights='uniform'"):
        strategy_of("fedavg", combiner="median", weights=[1, 2, 3, 4, 5]).run(grid, 1, progress=False)


def test_a_subclass_declares_anew_what_it_is():
    """It may combine in another way: its parent's word does not hold for it."""

    class Doubled(Mean):
        pass

    assert Mean.declares("is_linear")
    assert Mean.declares("streams")
    assert not Doubled.declares("is_linear")
    assert not Doubled.declares("streams")


def test_krum_goes_on_where_clients_are_missing():
    """With so many fewer liars as the answers allow."""
    few = [next(uploads(DELTAS[[place]], MOMENTS[[place]])) for place in range(5)]
    for num_answers, num_bad in ((5, 1), (4, 1), (3, 1)):
        chosen = Krum(num_bad=3).combine(few[:num_answers]).delta
        assert torch.equal(chosen, Krum(num_bad=num_bad).combine(few[:num_answers]).delta)
    assert torch.equal(Krum(num_bad=3).combine(few[:2]).delta, few[0].delta)
    done = run(recipes.fedavg(), combiner="krum:1", unreliable=fedlada.Unreliable(dropout=0.6), rounds=6)
    assert {len(row["clients"]) for row in done.history} & {1, 2, 3, 4}


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="Krum with num_bad=4 needs 11 clients a round, got 6"):
        run(recipes.fedavg(), combiner="krum:4")
    with pytest.raises(ValueError, match=r"share must be in \[0, 0.5\), got 0.5"):
        TrimmedMean(share=0.5)
    with pytest.raises(ValueError, match=r"combiner must be one of mean, norm-bound.* private, got 'average'"):
        as_combiner("average")
    with pytest.raises(ValueError, match="combiner median takes no number"):
        as_combiner("median:3")
    with pytest.raises(ValueError, match="name or name:number, such as norm-bound:10, got 'krum:two'"):
        as_combiner("krum:two")
    for number in ("1.7", "inf", "nan"):
        with pytest.raises(ValueError, match=f"krum takes a whole number of malicious clients, got {number}"):
            as_combiner(f"krum:{number}")
    with pytest.raises(ValueError, match="fedexp has a combiner of its own"):
        run(recipes.fedexp(), combiner="median")


def test_names_of_the_command_line():
    given = ["mean", "norm-bound", "norm-bound:10", "trimmed-mean:0.2", "median", "krum:2", "geometric-median"]
    found = [as_combiner(one) for one in given]
    bounds = [NormBound(), NormBound(max_norm=10)]
    assert found == [Mean(), *bounds, TrimmedMean(share=0.2), Median(), Krum(num_bad=2), GeometricMedian()]


X, Y = blobs()


def run(method, **changes):
    values = {"rounds": 4, "cohort_size": 6, "batch_size": 8, "lr": 0.05, "test": (X, Y), "dtype": torch.float64}
    return fedlada.simulate(small_net(), (X, Y), method=method, **{**values, **changes})


ROBUST = ["norm-bound", "norm-bound:0.1", "trimmed-mean:0.2", "median", "krum:1", "geometric-median"]


@pytest.mark.parametrize("combiner", ROBUST)
def test_engines_agree(combiner):
    method = recipes.fedlada(v_init=1e-4)
    one, other = (run(method, combiner=combiner, engine=engine) for engine in ("sequential", "stacked"))
    torch.testing.assert_close(one.server.params, other.server.params, rtol=1e-9, atol=1e-11)
    plain = run(method)
    same = torch.allclose(plain.server.params, one.server.params, rtol=1e-6)
    assert same == (combiner == "norm-bound")  # nobody is three times as long as the others here


def test_a_run_goes_on_under_the_same_bound(tmp_path):
    method = recipes.fedlada(v_init=1e-4)
    whole = run(method, combiner=NormBound(factor=0.9), rounds=4)
    run(method, combiner=NormBound(factor=0.9), rounds=2, out=tmp_path / "run")
    again = run(method, combiner=NormBound(factor=0.9), rounds=4, out=tmp_path / "run")
    assert torch.equal(again.server.params, whole.server.params)
    for row in whole.history:
        assert set(row["norms"]) == {"delta", "extra.0.v"}
        assert row["bounded"]
        assert set(row["bounded"]) <= set(row["clients"])


def test_a_learned_bound_is_of_the_rounds_before():
    first = {"delta": [1.0, 2.0, 3.0]}
    bound = NormBound(factor=2.0).for_round([first, {"delta": [5.0, 6.0, 7.0]}])
    assert bound.outliers({"delta": [5.9, 6.1, 1e30]}) == [1, 2]
    assert NormBound(factor=2.0).outliers({"delta": [1.0, 1.0, 2.1]}) == [2]
    assert NormBound(max_norm=3.0).for_round([first]).outliers({"delta": [2.0, 4.0]}) == [1]


@pytest.mark.parametrize("lie", [1e3, 1e30])
def test_one_of_two_clients_cannot_raise_the_learned_bound(lie):
    """The lower of the two middle norms counts, in the first round and later."""
    honest = Upload(torch.ones(4, dtype=torch.float64), ())
    liar = Upload(torch.full((4,), lie, dtype=torch.float64), ())
    combiner = NormBound(factor=4.0)
    assert combiner.outliers({"delta": [2.0, 2.0 * lie]}) == [1]
    assert combiner.combine([honest, liar]).delta.tolist() == pytest.approx([2.5] * 4)
    later = combiner.for_round([{"delta": [2.0, 2.0 * lie]}] * 3)
    assert later.outliers({"delta": [2.0 * lie, 7.9]}) == [0]


def test_zeros_do_not_count_in_the_learned_bound():
    """Half of the clients send nothing: the others still move the model."""
    honest, nothing = (Upload(torch.full((4,), value, dtype=torch.float64), ()) for value in (1.0, 0.0))
    assert NormBound().combine([honest, nothing]).delta.tolist() == pytest.approx([0.5] * 4)
    later = NormBound(factor=2.0).for_round([{"delta": [0.0, 0.0, 2.0]}])
    assert later.outliers({"delta": [3.9, 4.1]}) == [1]
    assert torch.equal(NormBound().for_round([{"delta": [0.0]}]).combine([honest]).delta, honest.delta)


def test_a_lone_client_is_bounded_by_earlier_rounds_and_in_the_first_by_max_norm():
    alone = Upload(torch.full((4,), 1e30, dtype=torch.float64), ())
    assert NormBound().for_round([{"delta": [2.0]}]).combine([alone]).delta.tolist() == pytest.approx([4.0] * 4)
    assert torch.equal(NormBound().combine([alone]).delta, alone.delta)
    assert NormBound(max_norm=2.0).combine([alone]).delta.tolist() == pytest.approx([1.0] * 4)


def test_an_even_learned_bound_equals_numpy():
    found = NormBound(factor=1.1).combine(uploads(DELTAS[:8], MOMENTS[:8]))
    expected = bounded(DELTAS[:8], learned(DELTAS[:8]), None)
    np.testing.assert_allclose(found.delta.numpy(), expected, rtol=0, atol=1e-12)


def test_fedexp_stays_as_it_is():
    assert isinstance(recipes.fedexp().combiner, Extrapolated)
    assert isinstance(FederatedMethod(name="mine", local=(), server=fedlada.server.SGD()).combiner, Mean)
