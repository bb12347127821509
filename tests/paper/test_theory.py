"""The theorem's study: its problem is what it says, its runs are the library's, its slopes and intervals are honest."""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlada import average, recipes
from fedlada.federation.randomness import generator
from fedlada.methods.local import LocalTransform
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Upload
from fedlada.paper.theory import amendment, fits, horizon, scales, speedup, study
from fedlada.paper.theory.problem import make_problem
from fedlada.paper.theory.trajectory import rounds
from fedlada.plots.interval import interval

pytestmark = pytest.mark.slow

UNLIKE = {"num_clients": 5, "noise": 0.7, "shift": 1.5, "tilt": 0.8, "num_params": 4}
RUN = {"cohort_size": 3, "num_steps": 4, "num_rounds": 6}


def test_gradients_are_those_of_the_stated_functions():
    problem = make_problem([3, 4], **UNLIKE)
    torch.testing.assert_close(problem.basis @ problem.basis.T, torch.eye(4, dtype=torch.float64))
    params = torch.from_numpy(generator(0, "test").normal(size=(2, 5, 4))).requires_grad_()
    offset = torch.einsum("jk,rik->rij", problem.basis, params) - problem.shifts
    stated = 0.25 * (1 + offset**2).log().sum() + (problem.tilts * params).sum()
    (expected,) = torch.autograd.grad(stated, params)
    actual = problem.client_gradient(params, problem.shifts, problem.tilts)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    point = params[:, 0].detach().requires_grad_()
    (expected,) = torch.autograd.grad(problem.loss(point).sum(), point)
    torch.testing.assert_close(problem.gradient(point), expected, rtol=1e-12, atol=1e-12)
    everywhere = problem.client_gradient(point.unsqueeze(1).expand(2, 5, 4), problem.shifts, problem.tilts)
    torch.testing.assert_close(everywhere.mean(1), expected, rtol=1e-12, atol=1e-12)


def test_smoothness_bounds_the_curvature_tightly_and_the_problem_is_not_convex():
    problem = make_problem([1], **{**UNLIKE, "num_clients": 1})
    normal = [torch.from_numpy(generator(1, "test", k).normal(size=(1, 4))) for k in range(40)]
    points = [scale * one for one in normal for scale in (0.05, 1, 5)]
    hessians = [torch.autograd.functional.jacobian(problem.gradient, one).reshape(4, 4) for one in points]
    values = torch.stack([torch.linalg.eigvalsh(hessian) for hessian in hessians])
    assert 0.9 * problem.smoothness < values.max() <= problem.smoothness
    assert values.min() < -0.1 * problem.smoothness
    moved = torch.stack(points) + 0.3
    change = (problem.gradient(moved) - problem.gradient(torch.stack(points))).norm(dim=-1)
    assert (change <= problem.smoothness * 0.3 * 2).all()  # ||(0.3, 0.3, 0.3, 0.3)|| = 0.6


def flat(seeds, **sizes):
    """So far out that the valley's slope is gone: what is left of a gradient is the client's tilt and the noise."""
    problem = make_problem(seeds, num_clients=5, num_params=4, **sizes)
    return replace(problem, start=torch.tensor([[1e9, 2e9, 3e9, 5e9]] * len(seeds), dtype=torch.float64))


def test_noise_is_as_stated():
    problem = flat([2, 9], noise=0.7)
    seen, method = recorder(recipes.fedavg())
    list(rounds(problem, method, seeds=[2, 9], cohort_size=3, num_steps=5, num_rounds=400, rates=[1e-9]))
    noise = torch.stack(seen)[:, 0]  # [rounds * steps, seeds, clients, params]
    assert (noise.abs() <= problem.noise[:, None, :] * math.sqrt(3) + 1e-9).all()
    torch.testing.assert_close(noise.std(dim=(0, 2)), problem.noise, rtol=0.03, atol=0)
    assert (noise.mean(dim=(0, 2)).abs() < 4 * problem.noise / math.sqrt(6000)).all()
    columns = noise.permute(1, 3, 0, 2).reshape(8, -1)
    assert (torch.corrcoef(columns) - torch.eye(8)).abs().max() < 0.06  # seeds and coordinates are independent


def test_cohorts_are_drawn_evenly_and_without_replacement():
    problem = flat([2, 9], noise=0.0, tilt=1.0)
    seen, method = recorder(recipes.fedavg())
    list(rounds(problem, method, seeds=[2, 9], cohort_size=3, num_steps=1, num_rounds=500, rates=[1e-9]))
    given = torch.stack(seen)[:, 0].transpose(0, 1)  # [seeds, rounds, clients, params]
    who = torch.cdist(given, problem.tilts[:, None]).argmin(-1)
    assert all(len(set(cohort)) == 3 for cohort in who.reshape(-1, 3).tolist())
    for seed in range(2):
        assert (torch.bincount(who[seed].flatten(), minlength=5) - 300).abs().max() < 50  # 4.5 standard deviations
    assert not torch.equal(who[0], who[1])


def test_each_client_keeps_its_own_memory():
    """On tilts alone SCAFFOLD's corrected steps agree as soon as every client has been active once."""
    walk = rounds(
        flat([1, 2], noise=0.0, tilt=1.0),
        recipes.scaffold(),
        seeds=[1, 2],
        cohort_size=2,
        num_steps=3,
        num_rounds=30,
        rates=[1e3],
    )
    first, *_, last = [(visit.ends - visit.ends.mean(2, keepdim=True)).abs().max() for visit in walk]
    assert first > 100
    assert last < 1e-3


def recorder(method: FederatedMethod, place: int = 0):
    """The method with a link in its chain that writes down every update that passes it."""
    seen: list[torch.Tensor] = []

    class Recorder(LocalTransform):
        def apply(self, update, local, step):
            seen.append(update)
            return update, local

    local = (*method.local[:place], Recorder(), *method.local[place:])
    return seen, FederatedMethod(name="recorded", local=local, server=method.server)


def test_the_auxiliary_sequence_moves_by_the_mean_of_the_adaptive_steps():
    """The paper's lemma: z^{t+1} = z^t - eta_g eta_l mean_i sum_tau m / sqrt(v_hat)."""
    alpha, eta_g, eta_l = 0.3, 1.7, 0.05
    problem = make_problem([0, 1], **UNLIKE)
    seen, method = recorder(recipes.fedlada(alpha=alpha, beta1=0.5, v_init=0.1, server_lr=eta_g), place=1)
    last = problem.start
    for number, visit in enumerate(rounds(problem, method, seeds=[0, 1], rates=[eta_l], **RUN)):
        now, after = visit.before.params, visit.after.params
        steps = torch.stack(seen[4 * number :]).sum(0).mean(2)
        z = horizon.auxiliary(now, last, alpha)
        torch.testing.assert_close(
            horizon.auxiliary(after, now, alpha), z - eta_g * eta_l * steps, rtol=1e-10, atol=1e-10
        )
        last = now
    assert number == 5


@pytest.mark.parametrize("method", [recipes.fedlada(alpha=0.2), recipes.scaffold()], ids=lambda one: one.name)
def test_seeds_and_rates_side_by_side_change_nothing(method):
    """A run among others equals the same run alone, client by client and by `average`."""
    rates = [0.02, 0.3]
    together = list(rounds(make_problem([7, 8], **UNLIKE), method, seeds=[7, 8], rates=rates, **RUN))
    alone = list(rounds(make_problem([8], **UNLIKE), method, seeds=[8], rates=rates[1:], **RUN))
    for both, one in zip(together, alone, strict=True):
        torch.testing.assert_close(both.after.params[1, 1], one.after.params[0, 0], rtol=1e-12, atol=1e-12)
        mean = average(iter([one_upload(end, one.before.params[0, 0]) for end in one.ends[0, 0]])).delta
        expected = one.before.params[0, 0] - method.server.lr * mean
        torch.testing.assert_close(one.after.params[0, 0], expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(together[-1].after.params[1, 0], together[-1].after.params[1, 1])


def one_upload(end, anchor):
    return Upload(anchor - end, ())


def test_intervals_cover_the_slope_as_often_as_they_say():
    """Two hundred studies of eight seeds on rounds that fall as x^-0.7: 95 % of the intervals hold -0.7."""
    x = (2, 4, 8, 16)
    held = 0
    for number in range(200):
        noise = generator(number, "test slopes").normal(size=(4, 8)) * 0.2
        luck = generator(number, "test luck").normal(size=8)  # a seed's own problem shifts all of its points
        y = [[100 * size**-0.7 * math.exp(noise[k, s] + luck[s]) for s in range(8)] for k, size in enumerate(x)]
        fitted = fits.slope_over_seeds(x, y)
        held += fitted.low <= -0.7 <= fitted.high
    assert 180 <= held <= 198
    assert fits.slope(x, [3 * size**-1.25 for size in x]) == pytest.approx(-1.25, abs=1e-12)
    for freedom, quantile in ((1, 12.7062), (2, 4.3027), (7, 2.3646), (30, 2.0423)):
        values = generator(freedom, "test quantiles").normal(size=freedom + 1)
        half = quantile * statistics.stdev(values) / math.sqrt(len(values))
        assert interval(values).high - interval(values).mean == pytest.approx(half, rel=1e-4)
    wide, narrow = interval([1.0, 2.0, 4.0], choices=7), interval([1.0, 2.0, 4.0])
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
    # 7/3 with the standard deviation 1.5275 of three values, and the quantile of two degrees of freedom.
    assert narrow.high == pytest.approx(7 / 3 + 4.3027 * 1.52753 / math.sqrt(3), abs=1e-3)


def test_rounds_to_the_target_are_read_off_whole_runs():
    """Means that fall as c / sqrt(T): the theorem's scale crosses 0.1 at (c / 0.1)^2, the best one earlier."""
    constants = torch.ones(len(horizon.SCALES), 2, dtype=torch.float64)
    constants[4] = torch.tensor([0.5, 0.7])
    constants[5] = torch.tensor([0.4, 0.9])  # luckier for the first seed, worse on average
    tried = (8, 16, 32, 64, 128)
    means = tuple(constants / math.sqrt(one) for one in tried)
    setting = horizon.Setting(cohort_size=2, num_steps=4)
    found = horizon.Search(setting, 0.1, tried, means)
    assert found.rounds() == pytest.approx((100.0, 100.0))
    assert found.rounds(best=True) == pytest.approx((25.0, 49.0))
    assert found.best_scale() == horizon.SCALES[4]
    assert found.decay() == pytest.approx(-0.5)
    assert horizon.Search(setting, 0.05, tried, means).rounds() is None
    # A short run that was thrown out to where the problem is flat has not arrived.
    lucky = (0.01 * means[0], means[1], 2 * means[2], *means[3:])
    assert horizon.Search(setting, 0.1, tried, lucky).rounds() == pytest.approx((100.0, 100.0))


def test_the_mean_is_that_of_the_auxiliary_sequence_over_the_whole_run():
    problem = make_problem([5, 6], **UNLIKE)
    setting = horizon.Setting(cohort_size=3, num_steps=4, alpha=0.25)
    means = horizon.mean_gradient(problem, setting, [5, 6], 7)
    scale = 4
    rate = horizon.SCALES[scale] / math.sqrt(4 * 7)
    method = recipes.fedlada(alpha=0.25, beta1=0.5, beta2=0.9, v_init=0.25, server_lr=math.sqrt(3))
    walk = rounds(problem, method, seeds=[5, 6], cohort_size=3, num_steps=4, num_rounds=7, rates=[rate])
    models = [visit.before.params[0] for visit in walk]
    assert len(models) == 7
    earlier = [models[0], *models]
    squares = [problem.gradient(4 * x - 3 * old).norm(dim=-1) ** 2 for x, old in zip(models, earlier, strict=False)]
    torch.testing.assert_close(means[scale], torch.stack(squares).mean(0))


def test_horizons_are_doubled_until_every_seed_has_arrived():
    problem = make_problem([0, 1, 2], num_clients=4, noise=0.5)
    setting = horizon.Setting(cohort_size=4, num_steps=4)
    found = horizon.search(problem, setting, [0, 1, 2], target=0.15, most_rounds=512)
    assert found.horizons == tuple(8 * 2**k for k in range(len(found.horizons)))
    assert found.means[-1][horizon.THEOREM].max() <= 0.15 < found.means[-2][horizon.THEOREM].max()
    assert all(found.horizons[-3] < one <= found.horizons[-1] for one in found.rounds())
    never = horizon.search(problem, setting, [0, 1, 2], target=1e-6, most_rounds=16)
    line = speedup.Line(replace(speedup_plan(), sizes=(4,)), problem, (never,))
    assert speedup.rounds_table([line], 3).rows[0][4] == "∞"
    assert {row[2] for row in speedup.slopes_table([line], 3).rows} == {"-"}


def speedup_plan():
    return speedup.plans(cohort_sizes=(2, 4), step_counts=(2, 4), target=0.1, papers_moments=())[0]


def test_an_optimum_is_called_interior_only_where_it_beats_both_ends():
    luck = torch.from_numpy(generator(0, "test luck").normal(size=8))
    clear = [luck + height + 0.01 * luck.roll(k) for k, height in enumerate((1.0, 0.0, 0.5))]
    assert amendment.optimum((0.1, 0.5, 1.0), clear) == "0.5 (interior)"
    unclear = [luck + height + luck.roll(k) for k, height in enumerate((9.0, 0.0, 0.1))]
    assert amendment.optimum((0.1, 0.5, 1.0), unclear) == "0.5 (not significant)"
    assert amendment.optimum((0.1, 0.5, 1.0), [*clear[::-1][1:], luck - 1]) == "1 (at the boundary)"


def test_step_sizes_are_the_theorems():
    setting = horizon.Setting(cohort_size=9, num_steps=16)
    assert setting.local_rate(100) == pytest.approx(1 / math.sqrt(16 * 100))
    assert setting.effective_rate(100) == pytest.approx(math.sqrt(9 * 16 / 100))
    problem = make_problem([0], num_clients=64, noise=1.0)
    # b1 S (m - 1) 2 / (32 (m - S) L G) = 0.5 * 9 * 63 * 2 / (32 * 55 * 0.5 * 2) = 0.322 is the sharpest bound here.
    assert not setting.meets_conditions(problem, math.floor(144 / 0.3222**2))
    assert setting.meets_conditions(problem, math.ceil(144 / 0.3221**2))
    with pytest.raises(ValueError, match="more than 9 local steps, got 9"):
        horizon.Setting(cohort_size=4, num_steps=9, beta1=0.9)


def test_smoke_study():
    told: list[str] = []
    tables, charts = study("smoke", [0, 1], told.append)
    assert [len(table.rows) for table in tables] == [10, 10, 4, 4, 8]
    assert len(charts) == 5
    for chart in charts:
        for series in chart.series:
            assert np.isfinite([*series.x, *series.y, *series.low, *series.high]).all()
    assert len(told) == 10 + 3 + 9


def test_consistency_follows_the_square_of_alpha():
    measured = amendment.measure_consistency([0, 1], alphas=(0.1, 0.4), num_rounds=3, progress=lambda _: None)
    for small, large in zip(*measured.by_alpha, strict=True):
        assert large / small == pytest.approx(16, rel=0.1)


def test_what_cannot_be_studied_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="scale must be one of smoke, quick, full, got 'huge'"):
        study("huge", [0, 1])
    for seeds in ([0], [3, 3]):
        with pytest.raises(ValueError, match="at least two seeds"):
            study("smoke", seeds)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ModuleNotFoundError, match=r"intervals need scipy: pip install '\.\[theory\]' in a clone of"):
        study("smoke", [0, 1])


def test_every_scale_runs_each_claim_beside_its_control():
    for scale in scales.SCALES.values():
        planned = speedup.plans(
            cohort_sizes=scale.cohort_sizes,
            step_counts=scale.step_counts,
            target=scale.target,
            papers_moments=scale.papers_moments,
        )
        kinds = {(plan.varied, plan.noise > 0) for plan in planned}
        assert kinds == {("S", True), ("S", False), ("K", True), ("K", False)}
        for plan in planned:
            for size in plan.sizes:
                assert plan.setting(size).cohort_size <= plan.num_clients
