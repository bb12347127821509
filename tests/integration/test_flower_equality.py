"""A federation over Flower gives the weights of the simulation, to the bit."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from fedlada.combine import Private
from fedlada.local import LocalTransform
from fedlada.server import SGD
from torch import nn

from fedlada import FederatedMethod, recipes, suggested
from fedlada import simulate as simulate_any
from fedlada.data import load_digits
from fedlada.flower import InProcessGrid, MethodStrategy, TooFewReplies, client_app, wire
from fedlada.methods.state import named_tensors
from method_table import METHODS
from own_combiners import LinearTotalFirst, TotalFirst
from small_federation import (
    CLIENTS,
    QUICK,
    SETTINGS,
    X,
    Y,
    assert_same_bits,
    grid_of,
    load,
    plain,
    simulate,
    strategy_of,
)
from tasks import small_net

FOUR = replace(QUICK, nodes=4)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_equals_its_simulation(name, tmp_path):
    method = METHODS[name].method()
    real = strategy_of(method).run(grid_of(method, tmp_path), 5, progress=False)
    simulated = simulate(method, 5)
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)


@dataclass(frozen=True, kw_only=True)
class RandomMask(LocalTransform):
    """Each client changes its own numbers alone, which it draws once."""

    def init_kept(self, params):
        return {"mask": (torch.rand_like(params) < 0.5).to(params)}

    def apply(self, update, local, step):
        return update * step.kept["mask"], local

    def finish(self, local, done, step):
        return {}, step.kept


def test_a_memory_that_begins_at_random_equals_its_simulation(tmp_path):
    method = FederatedMethod(name="masked", local=(RandomMask(),), server=SGD())
    real = strategy_of(method).run(grid_of(method, tmp_path), 3, progress=False)
    assert_same_bits(real, simulate(method, 3))


@pytest.mark.parametrize("combiner", ["norm-bound", "trimmed-mean:0.4", "median", "krum:1", "geometric-median"])
def test_every_combiner_equals_its_simulation(combiner, caplog):
    method, changes = recipes.fedlada(), {"cohort_size": 5, "combiner": combiner}
    real = strategy_of(method, **changes).run(grid_of(method), 3, progress=False)
    simulated = simulate(method, 3, **changes)
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)
    if combiner == "norm-bound":  # clients of very different sizes: some are scaled down, and named
        assert any(row["bounded"] for row in real.history)
        assert "sent more than the bound: scaled down" in caplog.text


@pytest.mark.parametrize("combiner", ["norm-bound", "krum:1"])
@pytest.mark.parametrize("messages", ["lean", "v=float32+every3"])
def test_a_vector_that_is_not_sent_counts_for_no_combiner(combiner, messages):
    method, changes = recipes.fedlada(beta2=0.9), {"cohort_size": 5, "combiner": combiner, "messages": messages}
    real = strategy_of(method, **changes).run(grid_of(method), 7, progress=False)
    simulated = simulate(method, 7, **changes)
    assert_same_bits(real, simulated)
    if combiner == "norm-bound":
        assert [row["bounded"] for row in real.history] == [row["bounded"] for row in simulated.history]
        measured = ["extra.0.v" in row["norms"] for row in real.history]
        assert measured == [round % (5 if messages == "lean" else 3) == 0 for round in range(1, 8)]


@pytest.mark.parametrize("weights", ["examples", [1.0, 0.0, 0.3, 2.0, 5.0]])
def test_weights_equal_their_simulation(weights, tmp_path):
    """A client of weight zero is idle in both."""
    method = recipes.scaffold()
    real = strategy_of(method, weights=weights).run(grid_of(method, tmp_path / "m"), 4, progress=False)
    simulated = simulate(method, 4, weights=weights)
    assert any(row["idle"] for row in real.history) == (weights != "examples")
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)


def test_a_federations_folder_refuses_other_weights(tmp_path):
    method, weights = recipes.fedavg(), [1.0, 2.0, 3.0, 4.0, 5.0]
    strategy_of(method, weights=weights).run(grid_of(method), 1, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"weights is 'given, \w+' there and 'given, \w+' here"):
        strategy_of(method, weights=weights[::-1]).run(grid_of(method), 2, out=tmp_path, progress=False)
    with pytest.raises(ValueError, match="weights must have one number for each of 5 clients, got 4"):
        strategy_of(method, weights=weights[:4])


@pytest.mark.parametrize("method", ["fedexp", "fednova"])
def test_a_methods_own_combiner_is_not_replaced_and_no_other_is_dropped(method):
    own = recipes.RECIPES[method]().combiner
    assert MethodStrategy(small_net(), method, num_clients=5).method.combiner == own
    for other in (Private(0.5, noise_multiplier=2.0), "norm-bound"):
        with pytest.raises(ValueError, match=f"{method} has a combiner of its own, .*: leave combiner out"):
            MethodStrategy(small_net(), method, num_clients=5, combiner=other)


@pytest.mark.parametrize("combiner", [TotalFirst(), LinearTotalFirst()])
def test_an_own_combiner_begins_with_all_weights(combiner):
    changes = {"cohort_size": 4, "weights": "examples"}
    real = strategy_of(recipes.fedlada(), combiner=combiner, **changes).run(
        grid_of(recipes.fedlada()), 3, progress=False
    )
    expected = dict(named_tensors(simulate(recipes.fedlada(), 3, **changes).server))
    for name, vector in named_tensors(real.server):
        torch.testing.assert_close(vector, expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_whole_numbers_are_read_on_the_nodes_as_in_a_simulation():
    whole, method = (10 * X).astype(int), recipes.fedavg()

    def load_whole(context):
        own = CLIENTS[context.node_config["partition-id"]]
        return whole[own], Y[own]

    app = client_app(small_net(), load_whole, method=method)
    strategy = MethodStrategy(small_net(), method, num_clients=5, test=(whole, Y), **SETTINGS)
    real = strategy.run(InProcessGrid(app, 5), 3, progress=False)
    data = {"train": (whole, Y), "test": (whole, Y), "partition": CLIENTS, "engine": "sequential"}
    simulated = simulate_any(small_net(), method=method, rounds=3, **data, **SETTINGS)
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)


class RandomFeatures(nn.Module):
    """Most of it is drawn from the seed and never trained: a frozen layer, a buffer, the masks of dropout."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(X.shape[1], 8).requires_grad_(False)
        self.register_buffer("mixing", torch.randn(8, 8))
        self.out = nn.Linear(8, int(Y.max()) + 1)

    def forward(self, x):
        return self.out(nn.functional.dropout(torch.relu(self.frozen(x) @ self.mixing), 0.3, self.training))


def test_what_is_random_and_not_trained_is_the_same_on_the_nodes(caplog):
    """It does not travel: nodes make it from the server's seed, and one that has another is not asked."""
    method, settings = recipes.fedlada(), {**SETTINGS, "cohort_size": None}
    strategy = MethodStrategy(RandomFeatures, method, num_clients=5, test=(X, Y), replies=FOUR, **settings)
    app, other = (client_app(model, load, method=method) for model in (RandomFeatures, RandomFeatures()))
    real = strategy.run(InProcessGrid(app, 5), 3, progress=False)
    data = {"train": (X, Y), "test": (X, Y), "partition": CLIENTS, "engine": "sequential"}
    simulated = simulate_any(RandomFeatures, method=method, rounds=3, **data, **settings)
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)
    grid = InProcessGrid(app, 5)
    grid.app = lambda message, context: (other if context.node_config["partition-id"] == 2 else app)(message, context)
    assert strategy.run(grid, 1, progress=False).history[0]["lost"] == [2]
    assert "frozen parameters or buffers, which do not travel, are not the server's" in caplog.text


def test_bare_names_are_the_same_method_on_both_sides():
    strategy = MethodStrategy(small_net(), "fedlada", num_clients=5, test=(X, Y), seed=11)
    real = strategy.run(grid_of("fedlada"), 2, progress=False)
    settings = {"rounds": 2, "seed": 11, "combiner": "norm-bound"}  # a federation's default, not a simulation's
    simulated = simulate_any(small_net(), (X, Y), method="fedlada", test=(X, Y), partition=CLIENTS, **settings)
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flower-app"


@pytest.mark.parametrize("method", [None, "fedexp", "fednova"])
def test_the_example_equals_its_simulation(method, monkeypatch):
    """With the method of its configuration, and with those that have combiners of their own."""
    monkeypatch.syspath_prepend(EXAMPLE)
    from federated import client_app, server_app, task

    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config["method"] = method or config["method"]
    suited = suggested(config["method"])
    train, test = load_digits()
    settings, clients = server_app.settings(config), config["num-clients"]
    strategy = MethodStrategy(task.make_model, num_clients=clients, test=test, **settings)
    real = strategy.run(InProcessGrid(client_app.app, clients, run_config=config), 2, progress=False)
    shares = task.shares(clients)
    simulated = simulate_any(task.make_model, train, test=test, partition=shares, rounds=2, **settings)
    assert real.history[-1]["lr"] == suited["lr"] * suited["lr_decay"]
    assert plain(real.history) == plain(simulated.history)
    assert_same_bits(real, simulated)


PRIVATE = {"combiner": Private(0.5, noise_multiplier=2.0), "cohort_size": 3, "local_epochs": None, "local_steps": 2}


@pytest.mark.parametrize("name", ["fedavg", "fedcm", "fedlada"])
def test_private_noise_of_the_seed_equals_its_simulation(name):
    method = METHODS[name].method()
    real = strategy_of(method, noise="seed", **PRIVATE).run(grid_of(method), 3, progress=False)
    simulated = simulate(method, 3, **PRIVATE)
    assert plain(real.history) == plain(simulated.history)
    assert real.history[-1]["epsilon"] > 0
    assert_same_bits(real, simulated)


def test_secret_noise_is_never_drawn_twice_and_what_is_released_again_is_counted(tmp_path):
    method = recipes.fedavg()

    def run(rounds, out=None):
        strategy = strategy_of(method, **PRIVATE)
        return strategy.run(grid_of(method), rounds, out=out, checkpoint_every=2, progress=False)

    one, other = run(3), run(3)
    assert not torch.equal(one.server.params, other.server.params)
    spent = [row["epsilon"] for row in run(4).history]
    assert spent[:3] == [row["epsilon"] for row in one.history]
    run(3, tmp_path)
    max((tmp_path / "checkpoints").glob("round-*.safetensors")).unlink()  # killed after round 3, before it was saved
    again = run(3, tmp_path).history
    assert [row["epsilon"] for row in again] == [*spent[:2], spent[3]]
    assert again[-1]["repeated"] == 1
    assert "secret" in (tmp_path / "config.json").read_text()


def test_each_run_of_a_strategy_solves_for_its_own_noise():
    method = recipes.fedavg()
    budget = {**PRIVATE, "combiner": Private(0.5, epsilon=2.0, delta=1e-4)}
    strategy = strategy_of(method, noise="seed", **budget)
    for rounds in (1, 3):
        real = strategy.run(grid_of(method), rounds, progress=False)
        simulated = simulate(method, rounds, **budget)
        assert len(real.history) == rounds
        assert real.method.combiner == simulated.method.combiner
        assert_same_bits(real, simulated)


def test_a_private_round_without_answers_releases_noise_alone():
    """As an empty one of a simulation: the model moves, the budget is spent."""
    method = recipes.fedavg()

    def silent(_who, asked, reply):
        return [] if asked.content[wire.HEADER].get("round") == 2 else [reply]

    steps = []
    strategy = strategy_of(method, noise="seed", replies=QUICK, **PRIVATE)
    note = [lambda simulation, _row: steps.append(simulation.server.params.clone())]
    real = strategy.run(grid_of(method, fault=silent), 3, callbacks=note, progress=False)
    assert float((steps[1] - steps[0]).norm()) > 0
    assert real.history["epsilon"] == simulate(method, 3, **PRIVATE).history["epsilon"]


def test_a_private_federation_whose_clients_diverge_ends():
    """Noise stands in for the missing mean: without an end it would train on noise until epsilon is spent."""
    method = recipes.fedavg()

    def diverge(_who, asked, reply):
        if asked.metadata.message_type == "train":
            reply.content[wire.HEADER]["status"] = "diverged"
        return [reply]

    with pytest.raises(TooFewReplies, match=r"3 had a NaN or an infinity.* round 3 in a row"):
        strategy_of(method, replies=QUICK, **PRIVATE).run(grid_of(method, fault=diverge), 8, progress=False)


def test_what_a_private_federation_refuses():
    for changes, sentence in (
        ({"combiner": Private(1.0, noise_multiplier=1.0, noise_cohort=9)}, "needs its full noise"),
        ({"eval_clients_every": 1}, "eval_clients_every measures on the nodes' data"),
        ({"method": recipes.scaffold()}, "use a method and messages without client state"),
        ({"messages": "delta=top0.2"}, "use a method and messages without client state"),
        ({"replies": replace(QUICK, minimum=2)}, "Private needs minimum=1, got 2"),
        ({"noise": "none"}, "noise must be one of secret, seed"),
    ):
        settings = {"method": recipes.fedavg(), **PRIVATE, **changes}
        with pytest.raises(ValueError, match=sentence):
            strategy_of(settings.pop("method"), **settings)
    method = recipes.fedavg()
    with pytest.raises(ValueError, match="use local_steps"):
        strategy_of(method, **{**PRIVATE, "local_steps": None}).run(grid_of(method), 1, progress=False)
