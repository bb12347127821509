"""Runs whose messages travel in codes: the engines agree, what was counted is what would be sent, nothing is lost."""

from __future__ import annotations

import pytest
import torch

import fedlada
from equivalence.test_stacked_equals_sequential import assert_same, simulation
from fedlada.engines import SequentialEngine, StackedEngine
from fedlada.engines.post import Post
from fedlada.federation.cohorts import Everyone, FixedSize
from fedlada.messages import CannotEncode, Exchange, to_bytes
from fedlada.methods.state import map_tensors, named_tensors
from fedlada.models import cnn_gn
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

CODED = "int8:direction=int4:delta=top0.3:control_change=top0.5:v=log8+every2"


def run_both(model, data, name, rounds, messages, **options):
    made = [
        simulation(engine, model, data, METHODS[name].method(), messages=messages, **options)
        for engine in (SequentialEngine, StackedEngine)
    ]
    for one in made:
        one.run(rounds)
    assert_same(*made)
    return made[0]


@pytest.mark.slow
@pytest.mark.parametrize("messages", [CODED, "lean"])
@pytest.mark.parametrize("name", METHODS)
def test_engines_agree(name, messages):
    coded = run_both(small_net(), blobs(), name, 4, messages)
    plain = simulation(SequentialEngine, small_net(), blobs(), METHODS[name].method())
    plain.run(4)
    assert not torch.allclose(coded.server.params, plain.server.params, rtol=1e-4)  # the codes have an effect
    assert coded.history[-1]["bytes_up"] < plain.history[-1]["bytes_up"]


def test_engines_agree_where_the_stack_has_an_order_of_its_own():
    """Convolutions lie channels-last in the stack; blocks and positions are the model's all the same."""
    images = torch.randn(120, 3, 8, 8, generator=torch.Generator().manual_seed(0)).numpy()
    torch.manual_seed(0)
    run_both(cnn_gn(3, input_shape=(3, 8, 8)), (images, blobs()[1]), "fedlada", 2, CODED)


@pytest.mark.parametrize("messages", ["float32", CODED])
@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_what_is_counted_is_what_would_be_sent(name, messages):
    """The ledger of a round against the lengths of the messages as bytes, for each client."""
    method = METHODS[name].method()
    run = simulation(SequentialEngine, small_net(), blobs(), method, cohorts=Everyone(), messages=messages)
    run.run(1)
    exchange, plan, before = run.exchange, run.plan.round(2), dict(run.kept)
    lengths = {}
    down = exchange.encode(run.server.broadcast, 2)
    assert set(exchange.expected(run.server.broadcast, 2)) == set(down)
    received = exchange.decode(down, run.server.broadcast)
    if "every" in messages and name != "scaffold":
        del down["down/v"]  # those asked in the first round have the second moments, which are still the same
    own = Post(exchange, plan).memories(before)
    for answer in run.engine.answers(received, plan, own):
        upload = answer.upload
        if exchange.remembered:
            upload = exchange.with_rest(upload, before.get(answer.work.client) or exchange.init_kept(upload.delta))
        up = exchange.encode_finite(upload, 2, answer.work.client)
        lengths[answer.work.client] = [len(to_bytes(one, exchange.about(2))) for one in (down, up)]
    row = run.run_round()
    for client, (sent_down, sent_up) in lengths.items():
        assert row["bytes_by_client"][str(client)] == [sent_down, sent_up]
    assert row["bytes_up"] + row["bytes_by_vector"]["up/(envelope)"] == sum(up for _, up in lengths.values())


def test_float32_messages_are_the_numbers_themselves():
    run = simulation(SequentialEngine, small_net(), blobs(), METHODS["fedlada"].method(), cohorts=Everyone())
    row = run.run_round()
    one_vector = 8 * run.server.params.numel()  # float64 here
    asked, answered = len(row["clients"]) + len(row["lost"]), len(row["clients"])
    assert row["bytes_down"] == 3 * asked * one_vector
    assert row["bytes_up"] == 2 * answered * one_vector
    # The paper's unit, in float32: it counts two for FedLADA and leaves out the way down of its direction.
    assert (row["nd_down"], row["nd_up"]) == (6.0, 4.0)


def test_what_was_not_sent_is_sent_later():
    """Error feedback: all that arrived and what is still remembered is all that was ever wanted."""
    exchange = Exchange("delta=top0.1", fedlada.recipes.fedavg(), seed=0)
    wanted = [torch.randn(50, generator=torch.Generator().manual_seed(n)) for n in range(30)]
    kept, arrived = exchange.init_kept(wanted[0]), torch.zeros(50)
    for round, delta in enumerate(wanted, 1):
        upload = exchange.with_rest(fedlada.methods.state.Upload(delta, ()), kept)
        received = exchange.decode(exchange.encode(upload, round), upload)
        kept = exchange.rest(upload, received, exchange.of_method(kept))
        assert (received.delta != 0).sum() == 5
        arrived += received.delta
    torch.testing.assert_close(arrived + kept.memory[-1]["up/delta"], sum(wanted), rtol=1e-5, atol=1e-5)


def spying(server_lr, size=67):
    """A method, and a list of where its clients start and how far they go; trials of the engine are of other sizes."""
    seen = []

    class Spy(fedlada.LocalTransform):
        def apply(self, update, local, step):
            return update, local

        def finish(self, local, done, step):
            if done.delta.shape == (size,):
                seen.append((step.anchor, done.delta))
            return {}, step.kept

    return fedlada.FederatedMethod(name="spy", local=(Spy(),), server=fedlada.server.SGD(lr=server_lr)), seen


def test_over_a_run_nothing_is_lost():
    """All that clients wanted to send has moved the server, but what they still remember."""
    (method, seen), residuals, model = spying(1.0), {}, small_net()
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def look(simulation, _row):
        residuals.update({client: kept.memory[-1]["up/delta"] for client, kept in simulation.kept.items()})

    result = fedlada.simulate(
        model, blobs(), method=method, partition=UNEQUAL, rounds=4, engine="sequential", batch_size=10,
        messages="delta=top0.1", lr=0.01, callbacks=[look],
    )  # fmt: skip
    wanted = torch.stack([delta for _, delta in seen[-4 * 5 :]]).sum(dim=0)
    left = torch.stack(list(residuals.values())).sum(dim=0)
    torch.testing.assert_close(5 * (start - result.server.params), wanted - left, rtol=1e-4, atol=1e-6)


def test_every_vector_of_every_client_is_rounded_by_noise_of_its_own():
    """Errors of the same numbers at the same places would not average out."""
    numbers = torch.randn(200, generator=torch.Generator().manual_seed(0))
    upload = fedlada.methods.state.Upload(numbers, ({"control_change": numbers},))
    exchange, other = (Exchange("int4", METHODS["scaffold"].method(), seed=seed) for seed in (0, 1))
    sent = [exchange.encode(upload, *who) for who in ((1, 0), (1, 3), (2, 3))] + [other.encode(upload, 1, 0)]
    codes = [bytes(one.parts["codes"].numpy()) for encoded in sent for one in encoded.values()]
    assert len(set(codes)) == len(codes) == 8


def test_a_refused_upload_keeps_the_memory_it_had():
    """A client whose upload is NaN sends nothing; its residual stays, and the others' move on."""
    is_poisoned = []

    def loss(outputs, targets):
        value = torch.nn.functional.cross_entropy(outputs, targets)
        return value * float("nan") if is_poisoned and len(targets) == 1 else value  # the client with one sample

    run = simulation(
        SequentialEngine, small_net(), blobs(), fedlada.recipes.fedavg(), cohorts=Everyone(), loss=loss,
        messages="delta=top0.2",
    )  # fmt: skip
    run.plan = type(run.plan)(
        clients=run.plan.clients, cohorts=Everyone(), work=run.plan.work, schedule=run.plan.schedule
    )
    run.run(2)
    before = dict(run.kept)
    is_poisoned.append(True)
    row = run.run_round()
    assert row["refused"] == [2]
    assert "2" in row["bytes_by_client"]
    assert row["bytes_by_client"]["2"][1] == 0
    assert run.kept[2] is before[2]
    assert all(run.kept[client] is not before[client] for client in (0, 1, 3, 4))


def test_moments_that_travel_every_third_round():
    """In between the server's stay as they are, and clients that have them are not sent them again."""
    method = METHODS["fedlada"].method()
    run = simulation(SequentialEngine, small_net(), blobs(), method, cohorts=Everyone(), messages="v=float32+every3")
    moments = [state["v"] for state in run.server.shared if "v" in state]
    seen = []
    for _ in range(7):
        row = run.run_round()
        now = [state["v"] for state in run.server.shared if "v" in state]
        seen.append((not torch.equal(now[0], moments[0]), "up/v" in row["bytes_by_vector"]))
        moments = now
        size = 8 * now[0].numel()
        first = row["round"] in (1, 4, 7)
        assert row["bytes_by_vector"].get("down/v", 0) == (
            size * (len(row["clients"]) + len(row["lost"])) if first else 0
        )
    assert seen == [(round % 3 == 0, round % 3 == 0) for round in range(1, 8)]


def test_numbers_that_do_not_fit_stop_the_run_and_change_nothing():
    model = small_net()
    with torch.no_grad():
        model[0].weight[0, 0] = 1e6
    run = simulation(SequentialEngine, model, blobs(), fedlada.recipes.fedavg(), messages="params=float16")
    before = map_tensors(torch.clone, run.server)
    with pytest.raises(CannotEncode, match="round 1: down/params does not fit into float16"):
        run.run(1)
    assert run.round == 0
    assert len(run.history) == 0
    for (_, one), (_, other) in zip(named_tensors(run.server), named_tensors(before), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("weights", ["uniform", "examples"])
@pytest.mark.parametrize("messages", ["params=int4", "delta=top0.1", "lean"])
def test_drift_is_where_the_clients_really_ended(messages, weights):
    """Whatever the server was told of it; with what clients could not send before, in the third round."""
    method, seen = spying(0.6)
    result = fedlada.simulate(
        small_net(), blobs(), method=method, partition=UNEQUAL, rounds=3, engine="sequential",
        messages=messages, batch_size=10, lr=0.01, weights=weights,
    )  # fmt: skip
    last = [start - delta for start, delta in seen[-5:]]
    of = [1.0 if weights == "uniform" else float(len(own)) for own in UNEQUAL.assign(blobs()[1], 0)]
    drift = sum(w * float((end - result.server.params).square().sum()) for w, end in zip(of, last, strict=True))
    assert result.history[-1]["drift"] == pytest.approx(drift / sum(of), rel=1e-4)


def test_vectors_that_wait_for_different_rounds_and_clients():
    """Each at its own pace, whatever a transform does with it in between; only those who have one are spared it."""

    class Moments(fedlada.LocalTransform):
        positive = frozenset({"v", "w"})

        def init_shared(self, params):
            return {name: torch.ones_like(params) for name in ("v", "w")}

        def apply(self, update, local, step):
            return update, local

        def finish(self, local, done, step):
            return {name: done.delta.abs() + 1 for name in ("v", "w")}, step.kept

        def merge(self, shared, mean, round):
            return {name: 0.5 * shared[name] + mean[name] for name in shared}  # changes with every call

    method = fedlada.FederatedMethod(name="two", local=(Moments(),), server=fedlada.server.SGD(lr=1.0))
    run = simulation(
        SequentialEngine,
        small_net(),
        blobs(),
        method,
        cohorts=FixedSize(2),
        messages="v=float32+every2:w=float32+every3",
    )
    size = 8 * run.server.params.numel()
    changed = {"v": 0, "w": 0}
    has: dict[str, set] = {"v": set(), "w": set()}
    for round in range(1, 10):
        before = dict(run.server.shared[0])
        row = run.run_round()
        asked = {*row["clients"], *row["lost"]}
        for name, every in (("v", 2), ("w", 3)):
            new = [client for client in asked if client not in has[name]]
            assert row["bytes_by_vector"].get(f"down/{name}", 0) == size * len(new), (round, name)
            has[name] |= asked
            if row["clients"] and not torch.equal(run.server.shared[0][name], before[name]):
                changed[name] += 1
                assert round % every == 0
            if round % every == 0:
                has[name] = set()
    assert changed["v"] >= 3
    assert changed["w"] >= 2


def test_a_run_with_memories_of_its_messages_goes_on_to_the_same_bits(tmp_path):
    def go(out, rounds):
        return fedlada.simulate(
            small_net(), blobs(), method="scaffold", partition=UNEQUAL, cohort_size=3, rounds=rounds, batch_size=10,
            messages="delta=top0.2:control_change=top0.4:control=int8", checkpoint_every=2, out=tmp_path / out,
        )  # fmt: skip

    whole = go("whole", 7)
    go("parts", 4)
    resumed = go("parts", 7)
    for (_, one), (_, other) in zip(named_tensors(whole.server), named_tensors(resumed.server), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="messages is"):
        fedlada.simulate(
            small_net(), blobs(), method="scaffold", partition=UNEQUAL, cohort_size=3, rounds=8, batch_size=10,
            checkpoint_every=2, out=tmp_path / "parts",
        )  # fmt: skip
