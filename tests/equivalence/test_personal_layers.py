"""Personal parameters in every engine, over Flower, in codes and after a resume."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlada
from fedlada import recipes
from fedlada.federation.cohorts import Scheduled
from fedlada.flower import InProcessGrid, MethodStrategy, client_app
from fedlada.messages.exchange import Exchange
from fedlada.methods.state import named_tensors
from fedlada.models import cnn_gn
from fedlada.training.resolve import personal_of
from method_table import METHODS
from small_federation import CLIENTS, SETTINGS, X, Y, load
from tasks import UNEQUAL, blobs, small_net

HEAD = ("2.*",)


def run(method, engine="sequential", rounds=3, **changes):
    """Five clients of 40, 7, 1, 42 and 30 samples: each is tested on what it trains on."""
    x, y = blobs()
    own = [(x[list(rows)], y[list(rows)]) for rows in UNEQUAL.indices]
    settings = {"client_test": own, "personal": HEAD, "batch_size": 8, "lr": 0.05, "cohort_size": 3, **changes}
    return fedlada.simulate(
        small_net().double(), (x, y), method=method, partition=UNEQUAL, rounds=rounds, engine=engine, **settings
    )


def assert_close(one, other, bound=1e-10):
    for first, second in ((one.server, other.server), *((one.kept[c], other.kept[c]) for c in one.kept)):
        for (name, a), (_, b) in zip(named_tensors(first), named_tensors(second), strict=True):
            torch.testing.assert_close(a, b, rtol=bound, atol=bound, msg=lambda text, name=name: f"{name}: {text}")
    assert one.kept.keys() == other.kept.keys()
    for row, twin in zip(one.history, other.history, strict=True):
        for name, value in row.items():
            if name != "seconds":
                assert twin[name] == (pytest.approx(value, rel=1e-8) if isinstance(value, float) else value), name


@pytest.mark.parametrize("name", METHODS)
def test_stacked_equals_sequential(name):
    one, other = (run(METHODS[name].method(), engine) for engine in ("sequential", "stacked"))
    assert (one.engine, other.engine) == ("sequential", "stacked")
    assert_close(one, other)


def test_another_order_of_the_parameters():
    """Convolutions lie channels-last when stacked; what clients keep lies as in the model."""
    random, model = np.random.default_rng(0), cnn_gn(3, input_shape=(1, 8, 8))
    data = random.standard_normal((40, 1, 8, 8)), random.integers(0, 3, 40)
    settings = {"client_test": 0.25, "personal": ("0.*", "7.bias", "4.*"), "batch_size": 5, "lr": 0.05, "rounds": 3}
    runs = [
        fedlada.simulate(
            model,
            data,
            method=METHODS["scaffold"].method(),
            engine=engine,
            dtype=torch.float64,
            **settings,
        )
        for engine in ("sequential", "stacked")
    ]
    assert runs[1].engine == "stacked"
    assert_close(*runs)


def test_without_personal_parameters_nothing_differs():
    """To the bit, also beside an empty list of names."""
    x, y = blobs()
    plain, empty = (
        fedlada.simulate(small_net(), (x, y), method="scaffold", rounds=3, test=(x, y), partition=UNEQUAL, **more)
        for more in ({}, {"personal": ()})
    )
    assert torch.equal(plain.server.params, empty.server.params)
    assert set(plain.history[-1]) == set(empty.history[-1])


def test_clients_learn_heads_of_their_own():
    """Two kinds of clients with opposite labels: one head for all cannot serve both."""
    x, y = blobs(num_samples=240, num_classes=2)
    y = np.where(np.arange(240) % 2, 1 - y, y)
    clients = [range(0, 240, 4), range(1, 240, 4), range(2, 240, 4), range(3, 240, 4)]
    settings = {"client_test": 0.25, "batch_size": 16, "lr": 0.2, "rounds": 15, "partition": clients}
    own, one = (
        fedlada.simulate(small_net(num_classes=2), (x, y), method=recipes.fedavg(), personal=names, **settings)
        for names in (HEAD, ())
    )
    assert own.history[-1]["client_accuracy"] > 0.9 > 0.7 > one.history[-1]["client_accuracy"]
    heads = [own.client_model(client)[2].weight for client in range(4)]
    assert not torch.allclose(heads[0], heads[1], atol=0.1)
    assert torch.equal(own.client_model(0)[0].weight, own.client_model(1)[0].weight)
    assert torch.equal(own.model[2].weight, small_net(num_classes=2)[2].weight)


@pytest.mark.parametrize("messages", ["float32", "lean", "params=bfloat16:delta=top0.2"])
@pytest.mark.parametrize("name", ["fedlada", "scaffold"])
def test_personal_parameters_do_not_travel(name, messages):
    """Bytes are those of a model without them; whatever the code, a client's own parameters stay exact."""
    method = METHODS[name].method()
    result, everything = (run(method, messages=messages, personal=names) for names in (HEAD, ()))
    shared = 4 * 8 + 8
    assert result.server.params.numel() == shared + 8 * 3 + 3
    for row, whole in zip(result.history, everything.history, strict=True):
        if messages == "float32":
            for path, size in row["bytes_by_vector"].items():
                if "(" not in path:
                    num = len(row["clients"]) + (len(row["lost"]) if path.startswith("down") else 0)
                    assert size == 8 * shared * num, path  # float64
        assert row["bytes_up"] < 0.7 * whole["bytes_up"]
        assert row["bytes_down"] < 0.7 * whole["bytes_down"]
        assert row["nd_up"] < 0.7 * whole["nd_up"]


def test_a_message_holds_the_shared_parameters_alone():
    model, method = small_net(), recipes.fedlada()
    method = replace(method, personal=personal_of(HEAD, model))
    exchange = Exchange("int8:v=log8", method, 0)
    server = method.init(torch.randn(67))
    encoded = exchange.encode(server.broadcast, 1)
    assert {one.size for one in encoded.values()} == {40}
    received = exchange.decode(encoded, server.broadcast)
    assert torch.equal(received.params[40:], server.params[40:])
    assert not torch.equal(received.params[:40], server.params[:40])


def test_resume_to_the_same_bits(tmp_path):
    method = METHODS["fedgamma"].method()
    whole = run(method, rounds=7, out=tmp_path / "whole", personal_steps=2, messages="delta=top0.3")
    for rounds in (3, 7):
        parts = run(method, rounds=rounds, out=tmp_path / "parts", personal_steps=2, messages="delta=top0.3")
        with (tmp_path / "parts" / "client_metrics.jsonl").open("a") as file:
            file.write('{"round": 8, "client_accuracy": [0]}\n{"rou' if rounds == 3 else "")  # as a kill may leave it
    assert_close(whole, parts, bound=0)
    lines = [(tmp_path / name / "client_metrics.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    assert lines[0] == lines[1]
    assert [json.loads(line)["round"] for line in lines[0]] == list(range(1, 8))
    stored = fedlada.load_run(tmp_path / "parts", small_net().double())
    for client in (0, 3):
        own = zip(stored.client_model(client).parameters(), whole.client_model(client).parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in own)
    with pytest.raises(ValueError, match=r"personal is .*there and .*here"):
        run(method, rounds=8, out=tmp_path / "parts", personal=("0.*",), personal_steps=2, messages="delta=top0.3")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedadam", "scaffold", "fedlada", "fedsmoo"])
def test_flower_equals_its_simulation(name, tmp_path):
    """Nodes keep their own parameters on their disks, and test themselves with them."""
    method, settings = METHODS[name].method(), {**SETTINGS, "personal": HEAD}
    app = client_app(small_net(), load, method=method, memory=tmp_path / "memory", personal=HEAD)
    strategy = MethodStrategy(small_net(), method, num_clients=5, eval_clients_every=2, **settings)
    real = strategy.run(InProcessGrid(app, 5), 4, out=tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="stay on its nodes"):
        real.client_model(0)
    if method.combiner != recipes.fedavg().combiner:
        del settings["combiner"]
    own = [(X[rows], Y[rows]) for rows in CLIENTS]
    simulated = fedlada.simulate(
        small_net(),
        (X, Y),
        method=method,
        partition=CLIENTS,
        rounds=4,
        client_test=own,
        engine="sequential",
        **settings,
    )
    for (where, one), (_, other) in zip(named_tensors(real.server), named_tensors(simulated.server), strict=True):
        assert torch.equal(one, other), where
    stored = fedlada.load_run(tmp_path / "run", small_net())
    for client in range(5):
        pair = stored.client_model(client, memory=tmp_path / "memory"), simulated.client_model(client)
        assert all(torch.equal(a, b) for a, b in zip(*(one.parameters() for one in pair), strict=True))
    sizes = np.array([len(rows) for rows in CLIENTS])
    accuracies = np.array(simulated.clients["client_accuracy"])
    assert real.history[-1]["nodes_accuracy"] == pytest.approx(float((sizes * accuracies).sum() / sizes.sum()))
    for row, twin in zip(real.history, simulated.history, strict=True):
        vectors = [name for name in twin["bytes_by_vector"] if "(" not in name]
        assert {name: row["bytes_by_vector"][name] for name in vectors} == {
            name: twin["bytes_by_vector"][name] for name in vectors
        }


def test_a_node_with_other_personal_parameters_is_refused():
    method = recipes.fedavg()
    app = client_app(small_net(), load, method=method)
    strategy = MethodStrategy(
        small_net(), method, num_clients=5, personal=HEAD, replies=fedlada.flower.Replies(patience=0.1), **SETTINGS
    )
    with pytest.raises(fedlada.flower.TooFewReplies, match=r"personal: 2\.weight, 2\.bias"):
        strategy.run(InProcessGrid(app, 5), 1, progress=False)


def test_wrong_names_are_one_sentence():
    x, y = blobs()
    data = {"train": (x, y), "client_test": 0.2, "rounds": 1}
    with pytest.raises(ValueError, match=r"no trained parameter is named 'head\.\*'; there are 0\.weight, 0\.bias, 2"):
        fedlada.simulate(small_net(), personal=("head.*",), **data)
    with pytest.raises(ValueError, match="names every parameter, so nothing is left to train together"):
        fedlada.simulate(small_net(), personal="0.*, 2.*", **data)
    with pytest.raises(ValueError, match="there is no single model: give client_test"):
        fedlada.simulate(small_net(), personal=HEAD, **{**data, "client_test": None})
    with pytest.raises(ValueError, match="there is no single model: give client_test"):
        fedlada.simulate(small_net(), personal=HEAD, test=(x, y), **data)
    with pytest.raises(ValueError, match="let the nodes evaluate theirs with eval_clients_every"):
        MethodStrategy(small_net(), "fedavg", num_clients=3, personal=HEAD, test=(x, y))


@pytest.mark.parametrize("is_class", [True, False])
@pytest.mark.parametrize("names", [("north", "40", "south"), ()])
def test_only_a_client_has_a_model(names, is_class, tmp_path):
    x, y = blobs(num_samples=60)
    y = y if is_class else np.eye(3, dtype=np.float32)[y] + 2  # of a regression fewer files tell the number of clients
    clients = [range(0, 20), range(20, 40), range(40, 60)]
    result = fedlada.simulate(
        small_net(),
        (x, y),
        partition=dict(zip(names, clients, strict=True)) if names else clients,
        method=recipes.fedavg(),
        personal=HEAD,
        client_test=0.25,
        rounds=2,
        lr=0.1,
        cohorts=Scheduled([(0, 1)]),
        out=tmp_path,
    )
    for run in (result, fedlada.load_run(tmp_path, small_net())):
        heads = [run.client_model(client)[2].weight for client in (0, np.int64(1), 2)]
        assert not torch.equal(heads[0], heads[1])
        assert torch.equal(heads[2], small_net()[2].weight)  # it never took part
        for name, head in zip(names, heads, strict=False):
            assert torch.equal(run.client_model(name)[2].weight, head)
        for wrong in (3, -1, None, "nobody", True, "0", 1.0):
            with pytest.raises(ValueError, match=rf"there is no client {wrong!r}: give .*a number in 0\.\.2"):
                run.client_model(wrong)
        if names:
            with pytest.raises(ValueError, match=r"there is no client 'nobody': give a name such as 'north'"):
                run.client_model("nobody")
            with pytest.raises(ValueError, match="there is no client 40: give '40'"):
                run.client_model(40)
