"""A private run: what it releases is a function of the noisy sums, what it spends is FedAvg's, and it stops in time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fedlada.cohorts import Bernoulli, FixedSize
from fedlada.combine import Mean, Private
from torch import nn

import fedlada
from fedlada import Unreliable, recipes
from fedlada.data import IID, Given
from fedlada.federation.accounting import Accountant, Sampling
from fedlada.federation.batches import LocalWork
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import as_schedule
from fedlada.messages.exchange import Exchange
from fedlada.methods.combine import private as private_module
from fedlada.methods.state import map_tensors, named_tensors
from fedlada.training.privacy import Privacy
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

X, Y = blobs()
SETTINGS = {"test": (X, Y), "rounds": 3, "local_steps": 2, "batch_size": 8, "lr": 0.05, "device": "cpu", "seed": 4}
SETTINGS |= {"partition": IID(num_clients=12), "cohorts": Bernoulli(0.5)}
PRIVATE = Private(0.5, noise_multiplier=3.0, delta=1e-4)


def simulate(method="fedavg", data=(X, Y), private=PRIVATE, **changes):
    return fedlada.simulate(small_net(), data, method=method, combiner=private, **{**SETTINGS, **changes})


def same_server(one, other):
    ours, theirs = (dict(named_tensors(result.server)) for result in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(vector, theirs[name]) for name, vector in ours.items())


def released(result):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]


def privacy_of(**options):
    exchange = Exchange("float32", recipes.fedavg(), 0)
    plan = Plan(
        clients=[np.arange(2)] * 6,
        cohorts=Bernoulli(0.5),
        work=LocalWork(batch_size=2, steps=1),
        schedule=as_schedule(0.1, 1.0),
    )
    return Privacy(PRIVATE, plan, exchange, **options)


def refuses_unknown_classes(outputs, targets):
    """Infinite where a client has a class that nobody knows."""
    return nn.functional.cross_entropy(outputs, targets % 3) / (targets < 3).all()


ONE_COMBINER = [name for name, row in METHODS.items() if isinstance(row.method().combiner, Mean)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_COMBINER)
def test_all_that_is_released_is_a_function_of_the_noisy_sums(name, monkeypatch):
    """The same noisy sums from other clients, other data, other sizes and a client with NaN: the same to the bit."""

    def the_same(_, uploads, _weights=None):
        every = [map_tensors(torch.clone, upload) for upload in uploads]
        generator = torch.Generator().manual_seed(1)
        drawn = lambda vector: torch.rand(vector.shape, generator=generator).to(vector) + 0.01  # noqa: E731
        return map_tensors(drawn, every[0])

    monkeypatch.setattr(private_module._Release, "combine", the_same)
    method = METHODS[name].method()
    common = {"cohorts": FixedSize(3), "loss": refuses_unknown_classes}
    one = simulate(method, partition=UNEQUAL, **common)
    other_x, other_y = blobs(seed=9)
    other_y[40:110] += 3  # the second client's updates are not finite
    other = Given(indices=[range(3), range(40, 110), [], range(3, 30), range(30, 40)])
    two = simulate(
        method, (other_x, other_y), partition=other, unreliable=Unreliable(dropout=0.2, stragglers=0.6), **common
    )
    assert same_server(one, two)
    assert released(one) == released(two)
    assert [row["epsilon"] for row in one.history] == [
        row["epsilon"] for row in simulate(partition=UNEQUAL, cohorts=FixedSize(3)).history
    ]


@pytest.mark.parametrize("name", ["fedavg", "fedcm", "fedadam", "feddyn", "scaffold", "localadam", "fedlada"])
def test_stacked_draws_the_noise_of_sequential(name):
    one, other = (simulate(name, engine=engine, dtype=torch.float64) for engine in ("sequential", "stacked"))
    noiseless = simulate(name, private=replace(PRIVATE, noise_multiplier=1e-9, noise_cohort=None), dtype=torch.float64)
    for (key, vector), (_, theirs) in zip(named_tensors(one.server), named_tensors(other.server), strict=True):
        torch.testing.assert_close(vector, theirs, rtol=1e-9, atol=1e-12, msg=key)
    assert (one.server.params - noiseless.server.params).norm() > 0.1
    assert released(one)[-1]["epsilon"] == released(other)[-1]["epsilon"]
    assert all(bool((vectors["v"] > 0).all()) for vectors in one.server.shared if "v" in vectors)


def test_a_run_repeats_and_goes_on_to_the_same_bits(tmp_path):
    whole = simulate("fedlada", rounds=5, out=tmp_path / "whole", checkpoint_every=2)
    simulate("fedlada", rounds=3, out=tmp_path / "parts", checkpoint_every=2)
    parts = simulate("fedlada", rounds=5, out=tmp_path / "parts", checkpoint_every=2)
    assert same_server(whole, parts)
    assert released(whole) == released(parts)
    assert not same_server(whole, simulate("fedlada", rounds=5, seed=5))
    assert not (tmp_path / "whole" / "clients.json").exists()


def test_rows_say_what_was_spent_and_withhold_who_took_part():
    result = simulate("fedcm")
    counted = Accountant(Sampling(6.0, 12, by_coins=True), 3.0, 1e-4)
    assert [row["epsilon"] for row in result.history] == [counted.epsilon(round) for round in (1, 2, 3)]
    for row in result.history:
        assert row["train_loss"] is row["drift"] is None
        assert row["clients"] == row["lost"] == row["refused"] == row["idle"] == []
        assert row["bytes_by_client"] == {}
        assert row["bytes_up"] == 6 * 4 * 67  # of as many clients as are expected
        assert row["bytes_down"] == 2 * row["bytes_up"]
        assert row["test_accuracy"] is not None


def test_where_nobody_comes_noise_is_released():
    seen = [torch.cat([p.detach().flatten() for p in small_net().parameters()])]
    simulate(cohorts=Bernoulli(1e-9), rounds=2, callbacks=[lambda simulation, _: seen.append(simulation.server.params)])
    first, second = seen[1] - seen[0], seen[2] - seen[1]
    assert min(first.norm(), second.norm()) > 1  # over an expected cohort of almost nobody
    assert abs(torch.nn.functional.cosine_similarity(first, second, dim=0)) < 0.5  # each round has its own
    lost = simulate(data=(X, Y + 3), loss=refuses_unknown_classes)  # nobody with numbers is nobody, and not said
    assert [row["bytes_up"] for row in lost.history] == [row["bytes_up"] for row in simulate().history]


def test_a_scale_for_what_is_not_sent_is_refused():
    with pytest.raises(ValueError, match="has a scale for 'nope', which fedavg does not send"):
        simulate(private=Private(0.5, noise_multiplier=2.0, scales={"nope": 10.0}))


def test_a_callback_cannot_spend_more():
    def another(simulation, _):
        while simulation.round < 6:
            simulation.run_round()

    private = Private(0.5, epsilon=2.0, delta=1e-4)
    with pytest.raises(ValueError, match="no further round can be run: round 5 would spend epsilon 2"):
        simulate(private=private, rounds=4, callbacks=[another])


@pytest.mark.parametrize("attack", ["inner-product:0.3", "a-little-is-enough:0.3"])
def test_attackers_who_repeat_what_others_send_are_refused(attack):
    with pytest.raises(ValueError, match="send what follows from the honest uploads"):
        simulate(attack=attack)
    assert simulate(attack="sign-flip:0.3", rounds=1).history[-1]["epsilon"] > 0


def test_a_withheld_loss_is_nothing_to_stop_at():
    with pytest.raises(ValueError, match="'train_loss' is not measured in this run, which has test_"):
        simulate(stop_at={"train_loss": 100.0})


@pytest.mark.parametrize("checkpoint", [0, 4])
def test_rounds_that_are_released_again_are_never_forgotten(checkpoint):
    """Secret noise: resumed twice, the second time before a new line was written."""
    accountant = privacy_of(is_secret=True)
    rows = [{"round": number + 1, "repeated": 0} for number in range(7)]
    accountant.resume(rows, checkpoint, 0)
    assert accountant.repeated == 7 - checkpoint
    again = privacy_of(is_secret=True)
    again.resume(rows[:checkpoint], checkpoint, accountant.repeated)
    assert again.repeated == 7 - checkpoint
    assert again.epsilon(5) == accountant.epsilon(5) > privacy_of(is_secret=True).epsilon(5)


def test_a_run_stops_before_it_spends_more(tmp_path):
    private = Private(0.5, epsilon=2.0, delta=1e-4)
    result = simulate(private=private, rounds=4, out=tmp_path)
    found = result.method.combiner
    assert 1.99 < result.history[-1]["epsilon"] <= 2.0
    assert f"noise_multiplier={found.noise_multiplier}" in (tmp_path / "config.json").read_text()
    longer = simulate(private=found, rounds=40, out=tmp_path)
    assert len(longer.history) == 4
    assert longer.stopped.startswith("round 5 would spend epsilon 2.")
    assert longer.stopped.endswith("more than the target of 2")
    noise = f"noise_multiplier={found.noise_multiplier}"
    with pytest.raises(
        ValueError, match=f"for this many rounds: add {noise} to Private, which continues .* or start a new run in"
    ):
        simulate(private=private, rounds=40, out=tmp_path)  # solved for 40 rounds, it would be other noise
    simulate(private=replace(private, noise_multiplier=found.noise_multiplier), rounds=40, out=tmp_path)
    with pytest.raises(ValueError, match=r"holds another run.*combiner"):
        simulate(private=replace(private, clip=0.6), rounds=40, out=tmp_path)
    enough = simulate(private=replace(found, epsilon=2.3), rounds=40)
    assert 4 < len(enough.history) < 40
    counted = Accountant(Sampling(6.0, 12, by_coins=True), found.noise_multiplier, 1e-4)
    assert enough.history[-1]["epsilon"] <= 2.3 < counted.epsilon(len(enough.history) + 1)
    with pytest.raises(ValueError, match="not even one round can be run"):
        simulate(private=replace(found, epsilon=0.1))


def test_refusals():
    with pytest.raises(ValueError, match="weights every client equally: use weights='uniform'"):
        simulate(weights="examples")
    with pytest.raises(ValueError, match="eval_train_every measures on clients' data"):
        simulate(eval_train_every=1)
    with pytest.raises(ValueError, match="how much data clients have, which Private must hide: use local_steps"):
        simulate(partition=UNEQUAL, local_steps=None, local_epochs=1)
    with pytest.raises(ValueError, match="need to know who took part"):
        simulate("fedlada", messages="lean")
    with pytest.raises(ValueError, match="fedexp has a combiner of its own"):
        simulate(recipes.fedexp())
    images, model = (np.zeros((len(Y), 3, 2, 2), np.uint8), Y), nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(ValueError, match="scaled by the mean of all clients' data, which Private must hide"):
        fedlada.simulate(model, images, combiner=PRIVATE, **{**SETTINGS, "test": images})
    last = [name for name, _ in small_net().named_parameters()][-1]
    with pytest.raises(ValueError, match=r"client_test \(and personal, which needs it\) measures on clients' data"):
        simulate(personal=[last], client_test=0.2, test=None)
    with pytest.raises(ValueError, match=r"^eval_train_every measures on clients' data"):
        simulate(personal=[last], client_test=0.2, test=None, eval_train_every=1)


def test_messages_are_clipped_after_they_are_decoded(monkeypatch):
    """A code may lengthen a vector: the bound holds for what arrives."""
    seen = []
    clipped = private_module._Release._clipped

    def watched(self, upload):
        found = clipped(self, upload)
        seen.append(torch.cat([vector for _, vector in named_tensors(found)]).norm())
        return found

    monkeypatch.setattr(private_module._Release, "_clipped", watched)
    simulate("fedlada", private=replace(PRIVATE, clip=0.02), messages="int8", lr=0.1)
    assert max(seen) <= 0.02 * (1 + 1e-5)
    assert max(seen) > 0.0199
