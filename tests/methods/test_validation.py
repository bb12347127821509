"""Out-of-range values are refused at construction, in one sentence that names them."""

from __future__ import annotations

import math

import pytest

from fedlada import recipes
from fedlada.data import IID, Dirichlet, LocalWork, Pathological
from fedlada.federation.cohorts import Bernoulli, FixedSize, Scheduled, Unreliable
from fedlada.federation.schedules import Constant, Cosine, Debiased, Exponential, WarmUp
from fedlada.methods.combine import TrimmedMean
from fedlada.methods.local import ClipNorm, TowardGlobalDirection
from fedlada.methods.method import FederatedMethod
from fedlada.methods.server import SGD
from fedlada.methods.validation import seed_number
from fedlada.workbench.experiment import Experiment


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: recipes.fedlada(alpha=1.5), r"alpha must be in \(0, 1\], got 1.5"),
        (lambda: recipes.fedlada(alpha=0), r"alpha must be in \(0, 1\], got 0"),
        (lambda: recipes.fedcm(alpha=math.nan), "alpha must be a number, got nan"),
        (lambda: recipes.fedcm(alpha="x"), "alpha must be a number, got 'x'"),
        (lambda: recipes.fedlada(beta1=1.0), r"beta1 must be in \[0, 1\), got 1.0"),
        (lambda: recipes.fedadam(beta2=-0.1), r"beta2 must be in \[0, 1\), got -0.1"),
        (lambda: recipes.fedadam(tau=0), "tau must be positive, got 0"),
        (lambda: recipes.localadam(v_init=0.0), "v_init must be positive, got 0.0"),
        (lambda: recipes.localadam(v_init=1e-50), "v_init must be at least 1.2e-38, as smaller numbers vanish"),
        (lambda: recipes.localadam(power=0.6), r"power must be in \(0, 0.5\], got 0.6"),
        (lambda: recipes.fedlada(power=0), r"power must be in \(0, 0.5\], got 0"),
        (lambda: recipes.localadam(v_start="one"), "v_start must be one of zero, server, got 'one'"),
        (lambda: recipes.localadam(v_start="Server"), r"v_start must be .*, got 'Server'; did you mean 'server'\?"),
        (lambda: recipes.localadam(second_moment="x"), "second_moment must be one of averaged, reset, got 'x'"),
        (lambda: recipes.localadam(maximum=False), "maximum=False with v_start='zero' would ignore"),
        (lambda: recipes.fedprox(mu=-1), "mu must not be negative, got -1"),
        (lambda: recipes.fedprox(mu=math.inf), "mu must be finite, got inf"),
        (lambda: recipes.scaffold(correction=-0.5), "correction must not be negative, got -0.5"),
        (lambda: recipes.fedavg(server_lr=0), "server_lr must be positive, got 0"),
        (lambda: recipes.fedavg(server_lr=math.inf), "server_lr must be finite, got inf"),
        (lambda: recipes.fedavg(weight_decay=-1e-3), "weight_decay must not be negative, got -0.001"),
        (lambda: ClipNorm(max_norm=-1), "max_norm must be positive, got -1"),
        (lambda: recipes.fedavg(clip_norm=0.0), "clip_norm must be positive, got 0.0"),
        (lambda: FixedSize(0), "cohort_size must be a whole number of at least 1, got 0"),
        (lambda: FixedSize(5).check(4), "cohort_size is 5, but there are only 4 clients"),
        (lambda: FixedSize(5).draw(4, 0, 1), "cohort_size is 5, but there are only 4 clients"),
        (lambda: Bernoulli(1.5), r"probability must be in \[0, 1\], got 1.5"),
        (lambda: Scheduled([]), "the schedule of cohorts is empty"),
        (lambda: Scheduled([[1], [9]]).check(4), r"the cohort of round 2 names clients outside 0..3: \[9\]"),
        (lambda: Scheduled([[0, 0, 5]]).check(6), r"the cohort of round 1 names client 0 more than once: \[0, 0, 5\]"),
        (lambda: Scheduled([3]).check(4), "the cohort of round 1 must be a list of clients' indices, got 3"),
        (lambda: Scheduled([[0.5]]).check(4), r"the cohort of round 1 must be a list of clients' indices, got \[0.5\]"),
        (lambda: Unreliable(dropout=2), r"dropout must be in \[0, 1\], got 2"),
        (lambda: LocalWork(batch_size=0), "batch_size must be a whole number of at least 1, got 0"),
        (lambda: LocalWork(steps=0), "local_steps must be a whole number of at least 1, got 0"),
        (lambda: IID(num_clients=0), "num_clients must be a whole number of at least 1, got 0"),
        (lambda: IID(num_clients=True), "num_clients must be a whole number of at least 1, got True"),
        (lambda: IID(num_clients=3, size_spread=1e300), r"size_spread must be at most 100, .*, got 1e\+300"),
        (lambda: Dirichlet(num_clients=3, size_spread=101), "size_spread must be at most 100, .*, got 101"),
        (lambda: seed_number(-1), r"seed must be between 0 and 2\^64 - 1, got -1"),
        (lambda: seed_number(2**64), r"seed must be between 0 and 2\^64 - 1, got 18446744073709551616"),
        (lambda: Dirichlet(num_clients=3, concentration=0), "concentration must be positive, got 0"),
        (lambda: Pathological(num_clients=3, classes_per_client=0), "classes_per_client must be a whole number"),
        (lambda: Constant(0.0), "lr must be positive, got 0.0"),
        (lambda: Exponential(0.1, 1.2), r"lr_decay must be in \(0, 1\], got 1.2"),
        (lambda: Debiased(Constant(0.1), 0.0), r"alpha must be in \(0, 1\], got 0.0"),
        (
            lambda: Experiment(method="fedavg", debias=True),
            "debias is for methods with an alpha, which fedavg does not have",
        ),
        (lambda: Experiment(warmup=-2), "warmup must be a whole number of at least 0, got -2"),
        (lambda: WarmUp("0.1", 5), "lr must be a number, got '0.1'"),
        (lambda: Debiased(-0.1, 0.5), "lr must be positive, got -0.1"),
        (lambda: TrimmedMean(share="0.1"), "share must be a number, got '0.1'"),
        (lambda: WarmUp(Constant(0.1), 0), "num_rounds must be a whole number of at least 1, got 0"),
        (lambda: Cosine(0.1, 0), "num_rounds must be a whole number of at least 1, got 0"),
        (lambda: FederatedMethod(name="x", local=(1,), server=SGD()), "local must hold LocalTransforms, got 1"),
        (lambda: FederatedMethod(name="x", local=(SGD,), server=SGD()), r"got the class SGD \(make one: SGD\(\)\) in"),
        (
            lambda: FederatedMethod(name="x", local=(), server=SGD),
            r"ServerOptimizer, got the class SGD \(make one: SGD",
        ),
        (lambda: FederatedMethod(name="x", local=(), server="sgd"), "server must be a ServerOptimizer, got 'sgd'"),
    ],
)
def test_refused_in_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_parts_are_frozen():
    with pytest.raises(AttributeError):
        TowardGlobalDirection(alpha=0.1).alpha = 0.2  # type: ignore[misc]
