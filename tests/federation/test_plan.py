"""Plans: who works on what in which round, from the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedlada
from fedlada import schedules
from fedlada.data import Given, LocalWork
from fedlada.federation.cohorts import Bernoulli, Cohorts, Everyone, FixedSize, Scheduled, Unreliable, smallest
from fedlada.federation.plan import Plan
from fedlada.federation.randomness import bits, permutation
from tasks import blobs, small_net

CLIENTS = [np.arange(start, start + size) for start, size in ((0, 25), (25, 3), (28, 0), (28, 10), (38, 1))]


def make_plan(**changes):
    values = {
        "clients": CLIENTS,
        "cohorts": Everyone(),
        "work": LocalWork(batch_size=10, epochs=2),
        "schedule": schedules.Constant(0.1),
    }
    return Plan(**{**values, **changes})


def test_epochs_steps_and_clients_smaller_than_a_batch():
    plan = make_plan().round(1)
    assert {a.client: [len(b) for b in a.batches] for a in plan.assignments} == {
        0: [10, 10, 5, 10, 10, 5],
        1: [3, 3],
        3: [10, 10],
        4: [1, 1],
    }
    assert plan.idle == (2,)
    plan = make_plan(work=LocalWork(batch_size=10, steps=4)).round(1)
    assert {a.client: [len(b) for b in a.batches] for a in plan.assignments}[0] == [10, 10, 5, 10]
    assert {a.num_steps for a in plan.assignments} == {4}


def test_an_epoch_sees_every_sample_once_in_a_new_order():
    batches = make_plan().round(1).assignments[0].batches
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(first) == sorted(second) == list(range(25))
    assert first.tolist() != second.tolist()


def test_a_round_does_not_depend_on_which_were_asked_for_before():
    plan = make_plan(cohorts=FixedSize(3))
    later = plan.round(7)
    again = make_plan(cohorts=FixedSize(3)).round(7)
    for a, b in zip(later.assignments, again.assignments, strict=True):
        assert a.client == b.client
        assert a.seed == b.seed
        assert all((x == y).all() for x, y in zip(a.batches, b.batches, strict=True))


def test_a_clients_batches_do_not_depend_on_its_cohort():
    alone = make_plan(cohorts=Scheduled([[3]])).round(1).assignments[0]
    among = make_plan().round(1).assignments[2]
    assert alone.client == among.client == 3
    assert all((x == y).all() for x, y in zip(alone.batches, among.batches, strict=True))


def test_fixed_cohorts_have_their_size_and_everyone_gets_a_turn():
    draws = [FixedSize(3).draw(10, 0, round) for round in range(1, 301)]
    assert all(len(set(draw)) == 3 and draw == sorted(draw) for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=10)
    assert counts.min() > 50
    assert counts.max() < 130


@pytest.mark.parametrize(("num_clients", "size"), [(1, 1), (7, 7), (50, 1), (1000, 50)])
def test_a_fixed_cohort_is_the_beginning_of_a_random_order(num_clients, size):
    for round in (1, 2, 3):
        everyone = permutation(bits(5, "cohort", round), num_clients)
        assert FixedSize(size).draw(num_clients, 5, round) == sorted(everyone[:size].tolist())


@pytest.mark.parametrize("size", range(1, 8))
def test_of_equal_numbers_the_first_is_the_smallest(size):
    numbers = np.array([3, 1, 2, 1, 1, 3, 2], dtype=np.uint64)
    assert smallest(numbers, size) == sorted(np.argsort(numbers, kind="stable")[:size].tolist())


def test_bernoulli_cohorts_vary_and_may_be_empty():
    sizes = [len(Bernoulli(0.3).draw(10, 0, round)) for round in range(1, 301)]
    assert min(sizes) == 0
    assert 2.7 < np.mean(sizes) < 3.3


def test_scheduled_cohorts_repeat():
    cohorts = Scheduled([[2, 0], [1]])
    assert [cohorts.of_round(3, 0, round) for round in (1, 2, 3)] == [[0, 2], [1], [0, 2]]


class Own(Cohorts):
    """Clients of a user's choice."""

    def __init__(self, clients):
        self.clients = clients

    def draw(self, num_clients, seed, round):
        return self.clients if round > 1 else [0]


@pytest.mark.parametrize("clients", [np.array([4, 0, 3]), torch.tensor([4, 0, 3]), (np.int32(4), 0, np.uint8(3))])
def test_cohorts_of_ones_own_may_be_arrays_in_any_order(clients):
    plan, same = (make_plan(cohorts=cohorts).round(2) for cohorts in (Own(clients), Scheduled([[0, 3, 4]])))
    assert [(type(work.client), work.client) for work in plan.assignments] == [(int, 0), (int, 3), (int, 4)]
    for one, other in zip(plan.assignments, same.assignments, strict=True):
        assert all((x == y).all() for x, y in zip(one.batches, other.batches, strict=True))


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([2, 5], r"names clients outside 0..4: \[2, 5\]"),
        ([-1, 2], r"names clients outside 0..4: \[-1, 2\]"),
        ([3, 0, 3], r"names client 3 more than once: \[0, 3, 3\]"),
        (None, "must be a list of clients' indices, got None"),
        (np.array([True, False]), r"must be a list of clients' indices, got array\(\[ True, False\]\)"),
    ],
)
def test_impossible_cohorts_of_ones_own_are_refused(clients, said):
    with pytest.raises(ValueError, match=f"the cohort of round 2 {said}"):
        make_plan(cohorts=Own(clients)).round(2)


def test_lost_and_late_clients():
    plan = make_plan(unreliable=Unreliable(dropout=1.0)).round(1)
    assert plan.lost == (0, 1, 3, 4)
    assert plan.assignments == ()
    assert plan.num_asked == 4
    work = LocalWork(batch_size=1, epochs=4)
    late = make_plan(work=work, unreliable=Unreliable(stragglers=1.0))
    steps = np.array([late.round(round).assignments[0].num_steps for round in range(1, 60)])
    assert steps.min() >= 1
    assert steps.max() < 100
    assert 35 < steps.mean() < 65
    full = make_plan(work=work).round(1).assignments[0]
    part = late.round(1).assignments[0]
    assert all((x == y).all() for x, y in zip(part.batches, full.batches, strict=False))


def test_a_client_without_samples_is_no_part_of_the_federation():
    """With it SCAFFOLD and FedDyn would scale their mean over all clients."""

    def params(partition, name):
        settings = {"method": name, "lr": 0.05, "rounds": 4, "dtype": "float64"}
        return fedlada.simulate(small_net(), blobs(), partition=partition, **settings).server.params

    clients = [range(40), range(40, 70), range(70, 120)]
    for name in ("scaffold", "feddyn"):
        with_one = params(Given(indices=[*clients, range(0)]), name)
        assert torch.equal(with_one, params(Given(indices=clients), name))


def test_weights_and_participation():
    assert make_plan().total_weight == 4  # one has no samples
    by_examples = make_plan(weights="examples")
    assert by_examples.total_weight == 39
    assert [a.weight for a in by_examples.round(1).assignments] == [25, 3, 10, 1]


@pytest.mark.parametrize("given", [[1, 2, 4, 0, 1], np.array([0.5, 1, 2, 0, 0.5]), (w for w in (2, 4, 8, 0, 2))])
def test_weights_of_ones_own_by_their_ratios(given):
    plan = make_plan(weights=given)
    assert plan.total_weight == 1  # without the client that has no samples
    assert [(work.client, work.weight) for work in plan.round(1).assignments] == [(0, 0.25), (1, 0.5), (4, 0.25)]
    assert plan.round(1).idle == (2, 3)  # no samples, no weight


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("size", "weights must be one of uniform, examples, got 'size'"),
        ([1, 2], "weights must have one number for each of 5 clients, got 2"),
        ([1, 1, -1, 1, 1], r"weights\[2\] must not be negative, got -1"),
        ([1, 1, 1, 1, float("inf")], r"weights\[4\] must be finite, got inf"),
        ([1, 1, 1, 1, float("nan")], r"weights\[4\] must be a number, got nan"),
        ([1, 1, 1, 1, "1"], r"weights\[4\] must be a number, got '1'"),
        ([0] * 5, "weights are zero for every client: at least one must be positive"),
        (dict.fromkeys(range(5), 1), "weights must be 'uniform', 'examples' or a list of one number per client, got {"),
        (3, "weights must be 'uniform', 'examples' or a list of one number per client, got 3"),
    ],
)
def test_weights_that_are_none_are_refused(weights, said):
    with pytest.raises(ValueError, match=said):
        make_plan(weights=weights)


def test_a_rate_of_zero_makes_everyone_idle():
    plan = make_plan(schedule=lambda round: 0.0 if round == 2 else 0.1)
    assert plan.round(1).assignments
    assert plan.round(2).assignments == ()
    assert plan.round(2).idle == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_a_bad_rate_is_refused(bad):
    with pytest.raises(ValueError, match="the learning rate of round 1 must be"):
        make_plan(schedule=lambda _: bad).round(1)


def no_round():
    return 0.1


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        (lambda _: None, "lr must give the learning rate of round 3 as one number, got None"),
        (lambda _: "fast", "lr must give the learning rate of round 3 as one number, got 'fast'"),
        (lambda _: [0.1, 0.2], r"lr must give the learning rate of round 3 as one number, got \[0\.1, 0\.2\]"),
        (no_round, "lr must be a number or a function of the round, lambda t: .*, got <function no_round"),
    ],
)
def test_what_is_no_schedule_is_refused(schedule, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_plan(schedule=schedule).round(3)


def test_the_errors_of_a_schedule_are_its_own():
    with pytest.raises(TypeError, match="unsupported operand"):
        make_plan(schedule=lambda round: round + None).round(1)


def test_a_schedule_may_be_a_function_without_a_signature():
    assert make_plan(schedule=float).round(1).lr == 1.0
    assert make_plan(schedule={1: 0.5}.__getitem__).round(1).lr == 0.5


def test_schedules():
    assert [schedules.Constant(0.1)(t) for t in (1, 9)] == [0.1, 0.1]
    assert schedules.Exponential(0.1, 0.5)(1) == 0.1
    assert schedules.Exponential(0.1, 0.5)(3) == pytest.approx(0.025)
    cosine = schedules.Cosine(0.1, 5, final=0.02)
    assert [round(cosine(t), 6) for t in (1, 3, 5, 9)] == [0.1, 0.072361, 0.027639, 0.02]
    warm = schedules.WarmUp(schedules.Exponential(0.1, 0.5), 4)
    assert [warm(t) for t in (1, 2, 4, 5)] == pytest.approx([0.025, 0.025, 0.0125, 0.00625])
    assert [schedules.WarmUp(0.1, 4)(t) for t in (1, 4, 5)] == [0.025, 0.1, 0.1]  # a rate is a constant one
    assert [schedules.Debiased(0.1, 0.5)(t) for t in (1, 2)] == pytest.approx([0.2, 0.4 / 3])
    assert schedules.as_schedule(0.1, 1.0) == schedules.Constant(0.1)
    assert schedules.as_schedule(0.1, 0.9) == schedules.Exponential(0.1, 0.9)
    with pytest.raises(ValueError, match="lr is already a schedule"):
        schedules.as_schedule(cosine, 0.9)


def test_no_samples_at_all_is_refused():
    with pytest.raises(ValueError, match="no client has any samples"):
        make_plan(clients=[np.array([], dtype=np.int64)])


def test_weights_on_clients_without_samples_alone_are_refused():
    with pytest.raises(ValueError, match="weights are zero for every client that has samples"):
        make_plan(clients=[np.arange(3), np.array([], dtype=np.int64)], weights=[0, 1])


def test_clients_that_are_not_asked_make_no_weights_unequal():
    clients = [np.arange(3), np.arange(3, 9), np.arange(9, 12)]
    assert make_plan(clients=clients, weights=[2, 0, 2]).has_equal_weights
    assert not make_plan(clients=clients, weights=[2, 1, 2]).has_equal_weights


def test_batches_come_from_the_given_stream():
    work = LocalWork(batch_size=2, steps=1)
    first = work.batches(np.arange(10), bits(0, "x"), 1)[0]
    assert first.tolist() != work.batches(np.arange(10), bits(1, "x"), 1)[0].tolist()


def test_batches_differ_between_rounds_clients_and_seeds():
    def first_batches(seed, round):
        work = LocalWork(batch_size=5)
        clients = [np.arange(25), np.arange(25)]
        plan = make_plan(clients=clients, work=work, seed=seed).round(round)
        return [tuple(a.batches[0].tolist()) for a in plan.assignments], {a.seed for a in plan.assignments}

    drawn = [first_batches(seed, round) for seed in (0, 1) for round in (1, 2)]
    assert len({batch for batches, _ in drawn for batch in batches}) == 8
    assert len(set.union(*(seeds for _, seeds in drawn))) == 8
