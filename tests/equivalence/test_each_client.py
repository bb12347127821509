"""Tests of each client and fine-tuned ones: right, the same in all engines, and without a trace in the run."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import fedlada
from fedlada import recipes
from fedlada.federation.client_test import hold_out
from fedlada.methods.state import named_tensors
from method_table import METHODS
from tasks import UNEQUAL, blobs, small_net

X, Y = blobs()
CLIENTS = UNEQUAL.assign(Y, 0)


def run(method="fedlada", model=None, **changes):
    settings = {"partition": UNEQUAL, "cohort_size": 3, "batch_size": 8, "lr": 0.05, "rounds": 4, **changes}
    return fedlada.simulate(model or small_net().double(), (X, Y), method=method, **settings)


def accuracy(model, rows):
    with torch.no_grad():
        return float((model(torch.from_numpy(X[rows])).argmax(1).numpy() == Y[rows]).mean())


def test_held_out_samples_are_tested_and_never_trained_on():
    train, test = hold_out(CLIENTS, 0.25, 0)
    held, given = run(client_test=0.25), run(partition=train)
    assert torch.equal(held.server.params, given.server.params)
    expected = [accuracy(held.model, rows) if len(rows) else None for rows in test]
    assert held.clients["client_accuracy"] == pytest.approx(expected)
    known = np.array([one for one in expected if one is not None])
    assert held.history[-1]["client_accuracy"] == pytest.approx(known.mean())
    assert held.history[-1]["client_accuracy_worst_decile"] == pytest.approx(known.min())
    assert held.history[-1]["client_accuracy_std"] == pytest.approx(known.std())
    assert len(known) == 4
    assert known.std() > 0


def test_given_test_data_by_number_key_or_place():
    own = {client: (X[rows], Y[rows]) for client, rows in enumerate(CLIENTS) if client != 2}
    names = ["north", "east", "south", "west", "centre"]
    by_name = {names[client]: data for client, data in own.items()}
    partition = dict(zip(names, CLIENTS, strict=True))
    listed = [own.get(client) for client in range(5)]
    results = [
        run(client_test=own),
        run(client_test=listed),
        run(client_test=by_name, partition=partition),
    ]
    expected = [None if client == 2 else accuracy(results[0].model, rows) for client, rows in enumerate(CLIENTS)]
    for result in results:
        assert result.clients["client_accuracy"] == pytest.approx(expected)
    assert torch.equal(results[0].server.params, run().server.params)  # nothing is held out


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsam"])
def test_fine_tuning_leaves_no_trace(name, engine):
    """To the bit: rows without the new columns, the server, the memories."""
    method = METHODS[name].method()
    with_steps, without = (
        run(method, engine=engine, client_test=0.25, unreliable=fedlada.Unreliable(dropout=0.2, stragglers=0.3), **more)
        for more in ({"personal_steps": 5, "personal_every": 2}, {})
    )
    for row, twin in zip(with_steps.history, without.history, strict=True):
        assert ("personal_accuracy" in row) == (row["round"] % 2 == 0)
        changing = {"seconds"} | {column for column in row if column.startswith("personal_")}
        assert {k: v for k, v in row.items() if k not in changing} == {k: v for k, v in twin.items() if k != "seconds"}
    states = [(with_steps.server, without.server), *((one, without.kept[c]) for c, one in with_steps.kept.items())]
    for one, other in states:
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(named_tensors(one), named_tensors(other), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_fine_tuned_models_are_those_of_the_methods_own_chain(name):
    """Stacked equals sequential in every client's loss."""
    one, other = (
        run(METHODS[name].method(), engine=engine, client_test=0.25, personal_steps=3, rounds=2)
        for engine in ("sequential", "stacked")
    )
    for column in ("personal_loss", "client_loss"):
        pairs = zip(one.clients[column], other.clients[column], strict=True)
        assert all((a is None and b is None) or a == pytest.approx(b, rel=1e-9) for a, b in pairs)
    assert one.clients["personal_loss"] != one.clients["client_loss"]


def test_fine_tuning_by_hand():
    """FedAvg's chain is plain SGD at the round's rate, on batches of the client's training samples."""
    result = run(recipes.fedavg(), client_test=0.25, personal_steps=4, batch_size=100, lr=0.2, lr_decay=0.5)
    train, test = hold_out(CLIENTS, 0.25, 0)
    for client in (0, 1, 3, 4):
        model = copy.deepcopy(result.model).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=result.history[-1]["lr"])
        for _ in range(4):  # a batch is all of the client's samples
            optimizer.zero_grad()
            rows = train[client]
            nn.functional.cross_entropy(model(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows])).backward()
            optimizer.step()
        with torch.no_grad():
            x, y = torch.from_numpy(X[test[client]]), torch.from_numpy(Y[test[client]])
            loss = float(nn.functional.cross_entropy(model(x), y))
        assert result.clients["personal_loss"][client] == pytest.approx(loss, rel=1e-9)


def test_fine_tuning_of_scaffold_goes_on_from_its_memory():
    """Each step is corrected by c - c_i, as in a round."""
    result = run(recipes.scaffold(), client_test=0.25, personal_steps=3, batch_size=100, lr=0.2)
    train, test = hold_out(CLIENTS, 0.25, 0)
    control, memories = (
        result.server.shared[0]["control"],
        {c: one.memory[0]["control"] for c, one in result.kept.items()},
    )
    for client in (0, 1, 3, 4):
        model, rows = copy.deepcopy(result.model).train(), train[client]
        parameters = list(model.parameters())
        own = control - memories.get(client, torch.zeros_like(control))
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows]))
            gradient = torch.cat([one.flatten() for one in torch.autograd.grad(loss, parameters)])
            step = torch.nn.utils.parameters_to_vector(parameters) - 0.2 * (gradient + own)
            torch.nn.utils.vector_to_parameters(step.detach(), parameters)
        with torch.no_grad():
            x, y = torch.from_numpy(X[test[client]]), torch.from_numpy(Y[test[client]])
            assert result.clients["personal_loss"][client] == pytest.approx(
                float(nn.functional.cross_entropy(model(x), y)), rel=1e-9
            )


def test_without_classes_it_is_the_loss():
    x, y = X, X.sum(axis=1, keepdims=True)
    result = fedlada.simulate(small_net(num_classes=1), (x, y), method="fedavg", rounds=2, client_test=0.2, seed=3)
    row = result.history[-1]
    assert row["client_loss_worst_decile"] >= row["client_loss"] > 0
    assert "client_accuracy" not in row
    assert "client_accuracy" not in result.clients


def test_a_client_without_a_target_that_counts_is_left_out_and_counted():
    y = Y.copy()
    y[CLIENTS[1]] = -100
    result = fedlada.simulate(
        small_net().double(), (X, y), method="fedavg", partition=UNEQUAL, batch_size=8, rounds=1, client_test=0.25
    )
    row, accuracies = result.history[-1], result.clients["client_accuracy"]
    known = [accuracies[client] for client in (0, 3, 4)]
    assert result.clients["client_loss"][1] is None
    assert accuracies[1] is None
    assert row["client_accuracy"] == pytest.approx(np.mean(known))
    assert row["client_accuracy_worst_decile"] == min(known)
    assert row["client_accuracy_missing"] == 1


def by_class(output, y):
    """The lowest recall of a class: it fails where one is missing."""
    hits = (output.argmax(1) == y).double()
    return min(float(hits[y == label].mean()) if (y == label).any() else 1 / 0 for label in (0, 1, 2))


def variance(output, y):
    """NaN of one sample."""
    return output.double().var() if len(y) > 1 else math.nan


METRICS = {"recall": by_class, "variance_score": variance}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_metrics_of_ones_own_on_each_client(engine):
    result = run(client_test=0.25, metrics=METRICS, personal_steps=2, engine=engine)
    tests = hold_out(CLIENTS, 0.25, 0)[1]
    outputs = [result.model(torch.from_numpy(X[rows])).detach() for rows in tests]
    row, targets = result.history[-1], [torch.from_numpy(Y[rows]) for rows in tests]
    assert [len(own) for own in tests] == [10, 2, 0, 10, 8]
    expected = [float(variance(o, y)) if len(y) else None for o, y in zip(outputs, targets, strict=True)]
    assert result.clients["client_variance_score"] == pytest.approx(expected)
    known = np.array([one for one in expected if one is not None])
    assert row["client_variance_score"] == pytest.approx(known.mean())
    assert row["client_variance_score_worst_decile"] == pytest.approx(known.min())
    assert row["client_variance_score_std"] == pytest.approx(known.std())
    recalls = result.clients["client_recall"]
    assert recalls[1] is None  # two samples do not have all classes
    assert row["client_recall_missing"] == row["personal_recall_missing"] == 1
    assert row["client_recall"] == pytest.approx(np.mean([one for one in recalls if one is not None]))
    assert "client_variance_score_missing" not in row
    assert "client_accuracy" in row
    assert result.clients["personal_variance_score"] != result.clients["client_variance_score"]


def test_metrics_of_each_client_are_the_same_in_both_engines():
    one, other = (
        run(client_test=0.25, metrics=METRICS, personal_steps=2, engine=engine) for engine in ("sequential", "stacked")
    )
    assert other.engine == "stacked"
    for column in ("client_recall", "client_variance_score", "personal_recall", "personal_variance_score"):
        pairs = zip(one.clients[column], other.clients[column], strict=True)
        assert all((a is None and b is None) or a == pytest.approx(b, rel=1e-9) for a, b in pairs)


def test_metrics_of_each_client_choose_and_end_runs_and_are_resumed(tmp_path):
    settings = {"client_test": 0.25, "metrics": METRICS, "best": "client_recall"}
    run(rounds=2, out=tmp_path, **settings)
    resumed, at_once = run(out=tmp_path, **settings), run(**settings)
    assert resumed.clients == at_once.clients
    columns = [name for name in at_once.history[-1] if name.startswith("client_")]
    assert all(resumed.history[name] == at_once.history[name] for name in columns)
    lines = [json.loads(line) for line in (tmp_path / "client_metrics.jsonl").read_text().splitlines()]
    assert lines[-1] == at_once.clients
    with safe_open(tmp_path / "checkpoints" / "best.safetensors", "pt") as file:
        assert file.metadata()["metric"] == "client_recall"
    assert len(run(client_test=0.25, metrics=METRICS, stop_at={"client_recall": 0.0}).history) == 1


def test_metrics_of_each_client_are_checked_before_the_first_round():
    def broken(*_):
        raise KeyError("column")

    with pytest.raises(ValueError, match="the metric 'broken' failed: KeyError: 'column'"):
        run(client_test=0.25, metrics={"broken": broken}, callbacks=[lambda *_: pytest.fail("a round was run")])
    for name in ("recall_std", "accuracy_missing"):
        with pytest.raises(ValueError, match=f"two metrics of each client would be stored as 'client_{name}'"):
            run(client_test=0.25, metrics={"recall": by_class, name: by_class})
    with pytest.raises(ValueError, match="give test=, validation= or client_test=, or leave metrics out"):
        run(metrics=METRICS)


def test_a_folder_keeps_each_round_and_refuses_another_share(tmp_path):
    result = run(client_test=0.25, personal_steps=2, eval_every=2, out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "client_metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4]
    assert lines[-1] == result.clients
    assert json.loads((tmp_path / "config.json").read_text())["client_test"] == 0.25
    with pytest.raises(ValueError, match=r"clients is|client_test is 0\.25 there and 0\.3 here"):
        run(client_test=0.3, personal_steps=2, eval_every=2, out=tmp_path)
    with pytest.raises(ValueError, match="personal_steps is 2 there and 3 here"):
        run(client_test=0.25, personal_steps=3, eval_every=2, out=tmp_path)
    assert run(client_test=0.25, personal_steps=2, eval_every=2, out=tmp_path).clients == result.clients


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"client_test": 1.0}, r"client_test must be in \(0, 1\), got 1\.0"),
        ({"personal_steps": 2}, "personal_steps needs the clients' test samples"),
        ({"client_test": 0.2, "personal_steps": 0}, "personal_steps must be"),
        ({"client_test": 0.2, "personal_every": 2}, "personal_every needs personal_steps"),
        ({"client_test": [(X, Y)]}, "test data for each of 5 clients"),
        ({"client_test": {"nobody": (X, Y)}}, "client_test has data for 'nobody', which is not a client"),
        (
            {"partition": {"a": [0, 1], "b": [2, 3]}, "client_test": {"b": (X, Y), "c": (X, Y)}},
            "client_test has data for 'c', which is not a client",
        ),
        ({"client_test": [(X[:, :3], Y)] * 5}, "cannot take a batch of the client test data"),
    ],
)
def test_wrong_settings_are_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(**changes)


class Pretrained(nn.Module):
    """A frozen backbone with BatchNorm in evaluation mode, and a head that is trained."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5))
            self.head = nn.Linear(8, 3)
            self.backbone[1].running_mean.uniform_(-1, 1)
            self.backbone[1].running_var.uniform_(0.5, 2)
        self.backbone.eval().requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x))


def test_a_frozen_batch_norm_in_evaluation_mode_is_accepted_by_all_engines():
    """It stays as it was, through training, evaluation and tests of clients; over Flower too."""
    from fedlada.flower import InProcessGrid, MethodStrategy, client_app

    model, method = Pretrained().double(), recipes.fedlada()
    settings = {"client_test": 0.25, "personal_steps": 2, "test": (X, Y)}
    one, other = (run(method, model, engine=engine, **settings) for engine in ("sequential", "stacked"))
    assert other.engine == "stacked"
    torch.testing.assert_close(one.server.params, other.server.params, rtol=1e-10, atol=1e-10)
    for name, buffer in one.model.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name
    app = client_app(model, lambda c: (X[(own := CLIENTS[c.node_config["partition-id"]])], Y[own]), method=method)
    same = {"cohort_size": 3, "batch_size": 8, "lr": 0.05, "combiner": "mean"}
    real = MethodStrategy(model, method, num_clients=5, test=(X, Y), **same).run(
        InProcessGrid(app, 5), 2, progress=False
    )
    assert torch.equal(real.server.params, run(method, model, rounds=2, test=(X, Y)).server.params)


def test_test_data_by_names_that_are_numbers_reach_their_clients():
    """Names win over places: client "1" is the first of six, not the second."""
    x, y = torch.randn(60, 3), torch.arange(60) % 2
    train = dict.fromkeys(range(1, 7), (x[:10], y[:10]))
    tests = {key: (x[:key], y[:key]) for key in range(1, 7)}
    seen = []
    fedlada.simulate(
        torch.nn.Linear(3, 2), train, method="fedavg", client_test=tests, rounds=1, device="cpu",
        callbacks=[lambda simulation, _: seen.extend(simulation.measures.each_client.test.owners.tolist())],
    )  # fmt: skip
    assert seen == [client for client in range(6) for _ in range(client + 1)]


def test_flipped_labels_can_be_evaluated_too():
    data = torch.randn(40, 3), torch.arange(40) % 2
    found = fedlada.simulate(
        torch.nn.Linear(3, 2),
        data,
        method="fedavg",
        attack="label-flip:0.3",
        eval_train_every=1,
        rounds=1,
        device="cpu",
    )
    assert found.history[0]["full_train_loss"] > 0
