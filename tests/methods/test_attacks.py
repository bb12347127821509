"""Attacks against NumPy: what attackers send, and that nothing else changes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from fedlada.combine import Combiner, Mean, TrimmedMean
from fedlada.testing.attacks import (
    ALittleIsEnough,
    Constant,
    GaussianNoise,
    InnerProduct,
    LabelFlip,
    PoisonedSecondMoments,
    Scale,
    SignFlip,
    as_attack,
    largest_z,
)

import fedlada
from fedlada import recipes
from fedlada.data import IID, Given
from fedlada.federation.attackers import attackers
from fedlada.federation.randomness import torch_seed
from fedlada.methods.state import map_tensors, named_tensors
from tasks import blobs, small_net

X, Y = blobs()
LIARS = sorted(attackers(10, 0.3, 5))
HONEST = [client for client in range(10) if client not in LIARS]


def run(attack=None, **changes):
    values = {"method": recipes.fedlada(v_init=1e-4), "rounds": 3, "batch_size": 8, "lr": 0.05, "test": (X, Y)}
    values |= {"dtype": torch.float64, "seed": 5, "device": "cpu"}
    return fedlada.simulate(small_net(), (X, Y), attack=attack, **{**values, **changes})


@dataclass(frozen=True, eq=False)
class Seen(Combiner):
    """The mean, and a note of what came."""

    uploads: list = field(default_factory=list)

    def combine(self, uploads, weights=None):
        self.uploads.extend(map_tensors(torch.clone, one) for one in uploads)
        return Mean().combine(self.uploads, weights)


def sent(attack, engine, method=None):
    """What ten clients send in the first round, vector by vector."""
    combiner = Seen()
    chosen = method or recipes.fedlada(v_init=1e-4)
    run(attack, engine=engine, method=chosen.with_combiner(combiner), rounds=1)
    names = [name for name, _ in named_tensors(combiner.uploads[0])]
    return {name: np.stack([dict(named_tensors(one))[name].numpy() for one in combiner.uploads]) for name in names}


def noise(client, size, deviation):
    stream = torch.Generator().manual_seed(torch_seed(5, "attack", 1, client))
    return deviation * torch.randn(size, generator=stream, dtype=torch.float64).numpy()


def quantile(share):
    """Of the standard normal distribution."""
    from scipy.stats import norm  # takes half a second: not where all tests are collected

    return norm.ppf(share)


def alie(honest):
    # Ten clients, three of them attackers: six are a majority, so three honest ones must be won over of seven.
    return honest.mean(axis=0) - quantile((7 - 3) / 7) * honest.std(axis=0)


LIES = {
    "sign flip": (SignFlip(share=0.3, scale=2), lambda own, _honest, _client: -2 * own),
    "scale": (Scale(share=0.3, factor=10), lambda own, _honest, _client: 10 * own),
    "gaussian": (GaussianNoise(share=0.3, deviation=3), lambda own, _honest, client: noise(client, own.shape, 3)),
    "constant": (Constant(share=0.3, value=-7), lambda own, _honest, _client: np.full_like(own, -7)),
    "inner product": (InnerProduct(share=0.3, scale=0.5), lambda _own, honest, _client: -0.5 * honest.mean(axis=0)),
    "alie": (ALittleIsEnough(share=0.3), lambda _own, honest, _client: alie(honest)),
    "alie, z given": (
        ALittleIsEnough(share=0.3, z=1.5),
        lambda _own, honest, _client: honest.mean(axis=0) - 1.5 * honest.std(axis=0),
    ),
    "second moments": (PoisonedSecondMoments(share=0.3, value=1e30), lambda _own, _honest, _client: 1e30),
}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", LIES)
def test_attackers_send_the_transcription_and_others_what_they_trained(name, engine):
    attack, lie = LIES[name]
    honest, found = sent(None, engine), sent(attack, engine)
    hit = "extra.0.v" if attack.on_positive else "delta"
    for vector, own in honest.items():
        expected = own.copy()
        if vector == hit:
            for client in LIARS:
                expected[client] = lie(own[client], own[HONEST], client)
        np.testing.assert_allclose(found[vector], expected, rtol=1e-12, atol=1e-14, err_msg=vector)


def test_every_vector_that_may_be_negative_is_replaced():
    """SCAFFOLD sends the change of a control too."""
    honest, found = (sent(attack, "sequential", recipes.scaffold()) for attack in (None, SignFlip(share=0.3)))
    assert len(honest) == 2
    for vector, own in honest.items():
        np.testing.assert_array_equal(found[vector][LIARS], -own[LIARS], err_msg=vector)


@pytest.mark.parametrize("attack", [SignFlip(share=0.3), PoisonedSecondMoments(share=0.3, value=1e30)])
def test_what_stays_with_a_client_is_not_lied_about(attack):
    last = [name for name, _ in small_net().named_parameters()][-1]
    combiner = Seen()
    method = recipes.fedlada(v_init=1e-4).with_combiner(combiner)
    run(attack, method=method, rounds=1, personal=[last], test=None, client_test=0.2)
    size = dict(small_net().named_parameters())[last].numel()
    hit = "extra.0.v" if attack.on_positive else "delta"
    for client, upload in enumerate(combiner.uploads):
        vector = dict(named_tensors(upload))[hit]
        untouched = vector[-size:]
        assert len(set(untouched.tolist())) == 1, client
        assert torch.any(vector[:-size] != untouched[0])
        assert (vector[0] == 1e30) == (client in LIARS and attack.on_positive)


def test_labels_are_flipped_for_attackers_alone():
    """Clients 0 and 1 hold the same samples: the honest one of them keeps their labels."""
    halves = [range(60), range(60), range(60, 120)]
    liars = attackers(3, 0.3, 5)
    assert len(liars) == 1
    partition = Given(indices=[halves[0 if client in liars else place] for place, client in enumerate((0, 1, 2))])
    twice = np.concatenate([Y, 2 - Y])
    moved = Given(
        indices=[[120 + one if client in liars else one for one in own] for client, own in enumerate(partition.indices)]
    )
    plain = {"partition": moved, "method": recipes.fedcm()}
    for engine in ("sequential", "stacked"):
        found = run(LabelFlip(share=0.3), engine=engine, **{**plain, "partition": partition})
        by_hand = fedlada.simulate(
            small_net(), (np.concatenate([X, X]), twice), rounds=3, batch_size=8, lr=0.05, dtype=torch.float64, seed=5,
            device="cpu", engine=engine, **plain,
        )  # fmt: skip
        assert torch.equal(found.server.params, by_hand.server.params)


def test_labels_of_a_dataset_are_flipped_too():
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    arrays, read = (
        fedlada.simulate(small_net(), data, attack="label-flip:0.3", method="fedavg", rounds=2, dtype=torch.float64)
        for data in ((X, Y), pairs)
    )
    torch.testing.assert_close(read.server.params, arrays.server.params, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"LabelFlip needs class indices .*: use an attack on updates"):
        fedlada.simulate(small_net(1), (X, X[:, :1]), attack="label-flip:0.3", method="fedavg", rounds=1)


ATTACKS = [one for one, _ in LIES.values()] + [LabelFlip(share=0.3)]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("messages", ["float32", "delta=int8"])
def test_engines_agree(attack, messages):
    one, other = (
        run(attack, engine=engine, messages=messages, cohort_size=6, combiner=TrimmedMean(share=0.4))
        for engine in ("sequential", "stacked")
    )
    torch.testing.assert_close(one.server.params, other.server.params, rtol=1e-10, atol=1e-12)
    for row, twin in zip(one.history, other.history, strict=True):
        assert row["attackers"] == twin["attackers"] == [client for client in row["clients"] if client in LIARS]
        assert row["drift"] == pytest.approx(twin["drift"], rel=1e-8)


def test_drift_is_that_of_the_training():
    """From where the clients really ended to the next model, and of those alone that were accepted."""
    start = torch.cat([one.detach().flatten().double() for one in small_net().parameters()]).numpy()
    trained = sent(None, "sequential")["delta"]
    for attack, counted in ((SignFlip(share=0.3), range(10)), (PoisonedSecondMoments(share=0.3, value=0), HONEST)):
        done = run(attack, rounds=1)
        assert done.history[0]["refused"] == [client for client in range(10) if client not in counted]
        away = start - trained[list(counted)] - done.server.params.numpy()
        assert done.history[0]["drift"] == pytest.approx((away**2).sum(axis=1).mean(), rel=1e-9)


@pytest.mark.parametrize("messages", ["float32", "v=log8", "delta=float16"])
def test_a_lie_that_cannot_be_sent_is_refused_and_ends_no_run(messages):
    for attack in (PoisonedSecondMoments(share=0.3, value=0), Scale(share=0.3, factor=1e300)):
        done = run(attack, messages=messages, dtype=torch.float32)
        assert len(done.history) == 3
        assert all(set(row["refused"]) == set(LIARS) for row in done.history)


def test_a_median_withstands_what_a_bound_does_not():
    """One of four clients sends -20 times its update in every round: under the bound it counts as four."""
    attack = SignFlip(share=0.25, scale=20)
    last = {
        rule: run(attack, combiner=rule, partition=IID(num_clients=4), rounds=15).history[-1]["test_loss"]
        for rule in ("mean", "norm-bound", "median", "trimmed-mean:0.25")
    }
    honest = run(partition=IID(num_clients=4), rounds=15).history[-1]["test_loss"]
    assert max(last["median"], last["trimmed-mean:0.25"]) < 1.5 * honest
    assert min(last["mean"], last["norm-bound"]) > 2 * honest


def test_a_run_goes_on_with_its_attack(tmp_path):
    whole = run("gaussian-noise:0.3:0.1", rounds=4)
    run("gaussian-noise:0.3:0.1", rounds=2, out=tmp_path / "run")
    again = run("gaussian-noise:0.3:0.1", rounds=4, out=tmp_path / "run")
    assert torch.equal(again.server.params, whole.server.params)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["attack"] == "GaussianNoise(deviation=0.1, share=0.3)"
    with pytest.raises(ValueError, match=r"attack is .* there and at its default here"):
        run(rounds=5, out=tmp_path / "run")


def test_the_attackers_are_the_seeds():
    assert attackers(10, 0.3, 5) == attackers(10, 0.3, 5) != attackers(10, 0.3, 6)
    assert [len(attackers(10, share, 0)) for share in (0.01, 0.1, 0.3, 1.0)] == [1, 1, 3, 10]
    assert attackers(10, 0.1, 5) < attackers(10, 0.3, 5)


def test_nobody_honest_in_a_round():
    """Then those who collude know what they have themselves."""
    done = run(InnerProduct(share=1.0), rounds=1)
    plain = run(rounds=1)
    start = torch.cat([one.detach().flatten().double() for one in small_net().parameters()])
    torch.testing.assert_close(done.server.params - start, start - plain.server.params, rtol=1e-9, atol=1e-12)


def test_z_is_the_papers():
    assert largest_z(50, 24) == pytest.approx(quantile(24 / 26))
    assert largest_z(10, 3) == pytest.approx(quantile(4 / 7))
    assert largest_z(10, 6) == pytest.approx(quantile(3 / 4))  # one supporter is wanted, whoever has the majority
    assert largest_z(10, 9) == 0


def test_names_of_the_command_line():
    assert as_attack("sign-flip:0.3") == SignFlip(share=0.3)
    assert as_attack("scale:0.3:10") == Scale(share=0.3, factor=10)
    assert as_attack("a-little-is-enough:0.2:1.5") == ALittleIsEnough(share=0.2, z=1.5)
    assert as_attack("poisoned-second-moments:0.1:0") == PoisonedSecondMoments(share=0.1, value=0)
    with pytest.raises(ValueError, match=r"attack must be one of sign-flip.* did you mean 'sign-flip'"):
        as_attack("signflip:0.3")
    with pytest.raises(
        ValueError, match=r"must name the share of malicious clients, such as label-flip:0.3, got 'label-flip'"
    ):
        as_attack("label-flip")
    with pytest.raises(ValueError, match=r"name:share or name:share:number, such as scale:0.3:10, got 'scale:some'"):
        as_attack("scale:some")
    with pytest.raises(ValueError, match=r"share must be in \(0, 1\], got 1.5"):
        SignFlip(share=1.5)
    with pytest.raises(ValueError, match="factor must be finite, got inf"):
        Scale(share=0.3, factor=float("inf"))
    with pytest.raises(ValueError, match="must be positive, and fedavg sends none: use an attack on the update"):
        run("poisoned-second-moments:0.3", method=recipes.fedavg())
