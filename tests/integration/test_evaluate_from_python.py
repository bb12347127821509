"""`fedlada evaluate` of runs that were made from Python."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import fedlada
from fedlada.federation.client_test import hold_out

TASK = """
import numpy as np
import torch
from torch import nn

random = np.random.default_rng(0)
x = random.standard_normal((90, 4)).astype("float32")
classes = (x @ random.standard_normal((4, 3))).argmax(axis=1)
prices = x.sum(axis=1, keepdims=True)
clients = [range(60), range(60, 90)]


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def price():
    return nn.Linear(4, 1)


def data():
    return (x, classes), (x[:30], classes[:30]), clients


def other_clients():
    return *data()[:2], [range(10), range(10, 90)]


def all_prices():
    return (x, prices), (x[:30], prices[:30])


def price_data():
    return *all_prices(), clients


def huber(output, y):
    return nn.functional.huber_loss(output, y, delta=0.1)


def squared(output, y):
    return (output["price"] - y).square().mean()


class Named(nn.Linear):
    def forward(self, x):
        return {"price": super().forward(x)}


def named():
    return Named(4, 1)


def nothing():
    return 3


def no_test():
    return (x, classes), None, clients


def a_share():
    return *data(), 0.3


def by_client():
    return [(x[own], classes[own]) for own in clients], None


def with_tests():
    return *no_test(), [(x[own][:5], classes[own][:5]) for own in clients]


def alone():
    return (x, classes), None
"""


@pytest.fixture
def task(tmp_path, monkeypatch):
    (tmp_path / "mytask.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("mytask", None)
    yield importlib.import_module("mytask")
    sys.modules.pop("mytask", None)


def run(task, model, data, rounds=6, **changes):
    train, test, *_ = data
    values = {"method": fedlada.recipes.fedavg(), "lr": 0.2, "device": "cpu", "out": "run", "checkpoint_every": 1}
    values |= {"partition": task.clients, **changes}
    return fedlada.simulate(model, train, test=test, rounds=rounds, **values)


def test_classes_and_clients(task, command):
    result = run(task, task.net, task.data())
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:data"]
    report = json.loads(command(*words, "--json").out)
    assert report["test"]["accuracy"] == pytest.approx(result.history[-1]["test_accuracy"])
    assert report["rounds"] == 6
    own = [fedlada.evaluate(result.model, (task.x[c], task.classes[c])) for c in task.clients]
    assert report["per_client"] == {str(number): one["accuracy"] for number, one in enumerate(own)}
    worst = min((0, 1), key=lambda number: own[number]["accuracy"])
    assert report["worst_client"]["client"] == worst
    assert report["same_clients"]
    assert set(report["per_class"]) == {str(one) for one in np.unique(task.classes[:30])}
    shown = command(*words).out
    assert "run after 6 rounds" in shown
    assert f"worst client ({worst})" in shown
    words[-1] = "mytask:other_clients"
    assert "not the clients of the run" in command(*words).out


def test_names_stay(task, command):
    run(task, task.net, task.data(), partition={"north": task.clients[0], "south": task.clients[1]})
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:data", "--json"]
    assert list(json.loads(command(*words).out)["per_client"]) == ["north", "south"]
    words[-2] = "mytask:other_clients"
    assert list(json.loads(command(*words).out)["per_client"]) == ["0", "1"]  # whose they are, nobody knows
    stored = json.loads((Path("run") / "clients.json").read_text())
    (Path("run") / "clients.json").write_text(json.dumps({**stored, "class_names": ["cat", "dog", "owl"]}))
    assert set(json.loads(command(*words).out)["per_class"]) == {"cat", "dog", "owl"}


def test_a_regression_has_its_loss(task, command):
    result = run(task, task.price, task.all_prices(), lr=lambda round: 0.1 if round < 3 else 3.0)
    losses = result.history["test_loss"]
    words = ["evaluate", "run", "--model", "mytask:price", "--data", "mytask:all_prices", "--best", "--json"]
    report = json.loads(command(*words).out)
    assert report["rounds"] == losses.index(min(losses)) + 1 < 6
    assert report["test"]["loss"] == pytest.approx(min(losses))
    assert report["test"]["rmse"] == pytest.approx(min(losses) ** 0.5)
    assert "per_class" not in report
    assert "per_client" not in report


def test_a_loss_of_ones_own_is_named_or_left_out(task, command):
    result = run(task, task.price, task.all_prices(), loss=task.huber)
    words = ["evaluate", "run", "--model", "mytask:price", "--data", "mytask:price_data"]
    left_out = json.loads(command(*words, "--json").out)
    assert set(left_out["test"]) == set(left_out["train"]) == {"mae", "rmse"}
    assert left_out["worst_client"]["mae"] == max(left_out["per_client"].values())
    shown = command(*words).out
    assert "loss 0" not in shown
    assert "No loss is shown: the run was trained with huber, which --loss package.module:function names here." in shown
    report = json.loads(command(*words, "--loss", "mytask:huber", "--json").out)
    assert report["test"]["loss"] == pytest.approx(result.history[-1]["test_loss"])
    own = [fedlada.evaluate(result.model, (task.x[c], task.prices[c]), task.huber)["loss"] for c in task.clients]
    assert list(report["per_client"].values()) == pytest.approx(own)
    assert "note" not in report
    assert "the loss 'mytask:gone' cannot be imported" in command(*words, "--loss", "mytask:gone", code=2).err


def test_classes_with_a_loss_of_torch(task, command):
    result = run(task, task.net, task.data(), loss=task.nn.CrossEntropyLoss())
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:data", "--json"]
    left_out = json.loads(command(*words).out)
    assert left_out["test"] == {"accuracy": pytest.approx(result.history[-1]["test_accuracy"])}
    assert "trained with CrossEntropyLoss" in left_out["note"]
    named = json.loads(command(*words, "--loss", "torch.nn:CrossEntropyLoss").out)
    assert named["test"]["loss"] == pytest.approx(result.history[-1]["test_loss"])


def test_nothing_can_be_measured_without_the_loss(task, command):
    result = run(task, task.named, task.all_prices(), loss=task.squared)
    words = ["evaluate", "run", "--model", "mytask:named", "--data", "mytask:price_data", "--json"]
    assert "has nothing to measure without its loss squared: name it with --loss" in command(*words, code=2).err
    report = json.loads(command(*words, "--loss", "mytask:squared").out)
    assert report["test"] == {"loss": pytest.approx(result.history[-1]["test_loss"])}


def test_arrays_in_a_file(task, command, tmp_path):
    run(task, task.net, task.data())
    np.savez(tmp_path / "a.npz", x_train=task.x, y_train=task.classes, x_test=task.x[:30], y_test=task.classes[:30])
    words = ["evaluate", "run", "--model", "mytask:net", "--dataset", "npz", "--data-dir", "a.npz", "--json"]
    named = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:data", "--json"]
    by_file, by_name = (json.loads(command(*one).out) for one in (words, named))
    assert by_file["test"] == by_name["test"]


@pytest.mark.parametrize("name", ["no_test", "by_client"])
def test_clients_test_themselves(task, command, name):
    train, _, *partition = getattr(task, name)()
    result = run(task, task.net, (train, None), client_test=0.3, partition=partition[0] if partition else None)
    words = ["evaluate", "run", "--model", "mytask:net", "--data", f"mytask:{name}"]
    report = json.loads(command(*words, "--json").out)
    assert "test" not in report
    assert report["clients_by"] == "held-out samples"
    assert report["same_clients"]
    assert np.mean(list(report["per_client"].values())) == pytest.approx(result.history[-1]["client_accuracy"])
    assert "worst client" in command(*words).out


def test_the_training_set_is_without_the_held_out_samples(task, command):
    result = run(task, task.net, task.data(), client_test=0.5, lr=1.0, rounds=30)
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:data", "--json"]
    _, tests = hold_out([np.array(own) for own in task.clients], 0.5, 0)
    own = np.setdiff1d(np.arange(90), np.concatenate(tests))
    expected = fedlada.evaluate(result.model, (task.x[own], task.classes[own]))["loss"]
    assert json.loads(command(*words).out)["train"]["loss"] == pytest.approx(expected)
    assert expected != pytest.approx(fedlada.evaluate(result.model, (task.x, task.classes))["loss"])


def test_tests_given_by_client(task, command):
    train, _, partition, tests = task.with_tests()
    result = run(task, task.net, (train, None), client_test=tests, partition=partition)
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:with_tests", "--json"]
    report = json.loads(command(*words).out)
    assert report["clients_by"] == "held-out samples"
    assert np.mean(list(report["per_client"].values())) == pytest.approx(result.history[-1]["client_accuracy"])


def test_equal_clients_need_no_partition(task, command):
    result = run(task, task.net, (task.alone()[0], None), client_test=0.3, partition=None)
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:alone", "--json"]
    report = json.loads(command(*words).out)
    assert len(report["per_client"]) == 10
    assert np.mean(list(report["per_client"].values())) == pytest.approx(result.history[-1]["client_accuracy"])


def test_personal_parameters_are_each_clients_own(task, command):
    result = run(task, task.net, (task.no_test()[0], None), client_test=0.3, personal=["2.*"])
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:no_test"]
    report = json.loads(command(*words, "--json").out)
    assert "train" not in report
    _, tests = hold_out([np.array(own) for own in task.clients], 0.3, 0)
    own = {
        str(client): fedlada.evaluate(result.client_model(client), (task.x[rows], task.classes[rows]))["accuracy"]
        for client, rows in enumerate(tests)
    }
    assert report["per_client"] == pytest.approx(own)
    assert "leave --best out" in command(*words, "--best", code=2).err
    words[-1] = "mytask:alone"
    assert "return (train, test, partition) from --data" in command(*words, code=2).err
    stored = json.loads(Path("run/config.json").read_text())
    Path("run/config.json").write_text(json.dumps({**stored, "engine": "flower"}))  # as a federation's: no client state
    assert "its personal parameters stay on its nodes" in command(*words, code=2).err
    with pytest.raises(ValueError, match=r"personal parameters stay on its nodes: .* give memory="):
        fedlada.load_run("run", task.net).client_model(0)


def test_a_share_that_was_trained_on_is_not_held_out(task, command):
    run(task, task.net, task.data()[:2])
    words = ["evaluate", "run", "--model", "mytask:net", "--data", "mytask:a_share"]
    assert "the data hold out 0.3 of each client's samples, and the run did not" in command(*words, code=2).err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "was made from Python: name its model (--model package.module:factory) and its data (--data"),
        (["--model", "mytask:net"], "and its data (--data package.module:function"),
        (["--data", "mytask:data"], "name its model"),
        (["--model", "mytask:net", "--data", "mytask:nothing"], "must be (train, test) or (train, test, partition)"),
        (["--model", "mytask:net", "--data", "mytask:gone"], "the data 'mytask:gone' cannot be imported"),
        (["--model", "mytask:price", "--data", "mytask:data"], "does not fit the model"),
        (["--model", "mytask:net", "--data", "mytask:all_prices"], "cannot be measured on these data"),
    ],
)
def test_what_is_missing_is_said(task, command, words, sentence):
    run(task, task.net, task.data(), rounds=1)
    assert sentence in command("evaluate", "run", *words, code=2).err
