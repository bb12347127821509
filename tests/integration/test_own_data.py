"""`--data module:function`: a user's own data from the shell, and folders that name those of somebody else."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import fedlada
from command_line import rows
from fedlada.workbench.report.command import run_command
from own_module import forget, working_directory

MINE = """
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

Path("imported").touch()
random = np.random.default_rng(0)
x = random.standard_normal((240, 5)).astype(np.float32)
y = x[:, :3].argmax(1)
parts = {"north": list(range(100)), "south": list(range(100, 150)), "west": list(range(150, 200))}


def data():
    return (x[:200], y[:200]), (x[200:], y[200:])


def with_clients():
    return *data(), parts


def by_client():
    return {name: (x[own], y[own]) for name, own in parts.items()}, (x[200:], y[200:])


def datasets():
    held = [TensorDataset(torch.from_numpy(x[own]), torch.from_numpy(y[own])) for own in parts.values()]
    return held, TensorDataset(torch.from_numpy(x[200:]), torch.from_numpy(y[200:]))


def by_name():
    return ({"u": x[:200, :2], "v": x[:200, 2:]}, y[:200]), ({"u": x[200:, :2], "v": x[200:, 2:]}, y[200:])


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 3), torch.nn.Linear(3, 3)

    def forward(self, u, v):
        return self.a(u) + self.b(v)


def no_test():
    return (x, y), None


def from_one():
    return (x[:200], y[:200] + 1), (x[200:], y[200:] + 1)


def one_pair():
    return x, y


def with_tests():
    return *data(), None, [(x, y)] * 10


def broken():
    raise KeyError("column")
"""
QUICK = ["--method", "fedavg", "--lr", 0.1, "--cohort-size", 2, "--device", "cpu", "--quiet"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with functions that make data, and that leave a trace where they are imported."""
    with working_directory(tmp_path, monkeypatch, "mine", MINE) as folder:
        yield folder


@pytest.fixture
def theirs(here, command):
    """The folder of a run of one round, as it comes from somebody else."""
    command("run", "--data", "mine:with_clients", *QUICK, "--rounds", 1, "--out", "theirs")
    forget("mine")
    (here / "imported").unlink()
    return here / "theirs"


@pytest.mark.parametrize("name", ["with_clients", "by_client", "datasets"])
def test_as_simulate_would_run_it(here, command, name):
    command("run", "--data", f"mine:{name}", *QUICK, "--rounds", 3, "--local-epochs", 2, "--out", "run")
    mine = sys.modules["mine"]
    given = getattr(mine, name)()
    expected = fedlada.simulate(
        lambda: fedlada.models.mlp(3, input_shape=(5,)), given[0], test=given[1], partition=(*given, None)[2],
        method="fedavg", lr=0.1, lr_decay=0.998, rounds=3, cohort_size=2, batch_size=20, local_epochs=2, device="cpu",
    )  # fmt: skip
    found = rows(here / "run")
    assert [row["test_accuracy"] for row in found] == expected.history["test_accuracy"]
    assert [row["test_loss"] for row in found] == expected.history["test_loss"]
    assert [row["clients"] for row in found] == expected.history["clients"]
    config = json.loads((here / "run" / "config.json").read_text())
    assert config["dataset"] == f"mine:{name}"
    again = run_command(config, here / "run")
    assert f"--data mine:{name}" in again
    command(*again.split()[1:], "--quiet", "--out", "again")
    assert [{**row, "seconds": 0} for row in rows(here / "again")] == [{**row, "seconds": 0} for row in found]


@pytest.mark.parametrize("name", ["with_clients", "by_client", "datasets", "data"])
def test_validation_client_tests_and_partitions_apply(here, command, name):
    words = ["run", "--data", f"mine:{name}", *QUICK, "--rounds", 1, "--client-test", 0.2]
    command(*words, "--validation", 0.1, "--out", "held")
    (row,) = rows(here / "held")
    assert {"validation_accuracy", "client_accuracy"} <= row.keys()
    assert "test_accuracy" not in row
    (tested,) = map(json.loads, (here / "held" / "client_metrics.jsonl").read_text().splitlines())
    assert len(tested["client_accuracy"]) == (10 if name == "data" else 3)  # without names ten equal clients
    command(*words, "--partition", "dirichlet", "--num-clients", 6, "--out", "divided")
    (tested,) = map(json.loads, (here / "divided" / "client_metrics.jsonl").read_text().splitlines())
    assert len(tested["client_accuracy"]) == 6


@pytest.mark.usefixtures("here")
def test_held_out_samples_leave_their_clients():
    source = fedlada.data.load_dataset("mine:with_clients")
    rest = source.holding_out(0.25)
    clients = rest.partition.assign(np.zeros(150), 0)
    assert rest.partition.client_names() == ("north", "south", "west")
    assert sorted(np.concatenate(clients).tolist()) == list(range(150))
    places = {one.tobytes(): number for number, one in enumerate(sys.modules["mine"].x)}
    whose = [[places[row.numpy().tobytes()] for row in rest.train.x[own]] for own in clients]
    assert all(set(own) <= set(given) for own, given in zip(whose, sys.modules["mine"].parts.values(), strict=True))


def test_several_inputs_need_a_model_of_ones_own(here, command):
    words = ["run", "--data", "mine:by_name", *QUICK, "--rounds", 1, "--out", "several"]
    assert "built-in models take one array: name a model of your own" in command(*words, code=2).err
    command(*words, "--model", "mine:Two")
    assert rows(here / "several")[0]["test_accuracy"] > 0


def test_compare_sweep_and_evaluate(here, command):
    words = ["--data", "mine:with_clients", "--cohort-size", 2, "--rounds", 2, "--device", "cpu"]
    command("compare", *words, "--methods", "fedavg,fedcm", "--seeds", 0, "--lr", 0.1, "--jobs", 2, "--out", "rivals")
    assert len(rows(here / "rivals" / "fedcm-seed0")) == 2
    said = command(
        "sweep", *words, "--method", "fedavg", "--set", "lr=0.01,0.3", "--jobs", 1, "--out", "swept", "--json"
    )
    best = json.loads(said.out)
    assert best["best"]["values"] == {"lr": 0.3}
    assert "--data mine:with_clients" in best["command"]
    folder = here / "rivals" / "fedavg-seed0"
    report = json.loads(command("evaluate", folder, "--data", "mine:with_clients", "--json").out)
    assert report["test"]["accuracy"] == rows(folder)[-1]["test_accuracy"]
    assert list(report["per_client"]) == ["north", "south", "west"]
    assert report["same_clients"]
    said = command("compare", "--data", "mine:no_test", "--methods", "fedavg", "--out", "none", code=2)
    assert "a comparison is on the test set, and mine:no_test returns none" in said.err
    words = ["--data", "mine:no_test", "--client-test", 0.3, *QUICK[2:], "--methods", "fedavg", "--seeds", 0]
    said = command("compare", *words, "--rounds", 1, "--json", "--out", "tested")
    assert json.loads(said.out)["metric"] == "client_accuracy"


def test_the_default_cohort_is_at_most_all_clients(here, command):
    own = ["--data", "mine:with_clients", "--lr", 0.1, "--rounds", 1, "--device", "cpu"]
    run = ["run", *own, "--method", "fedavg", "--out", "run"]
    assert "1 round of 3 of 3 clients" in command(*run).err
    config = json.loads((here / "run" / "config.json").read_text())
    assert config["cohort_size"] == 3
    assert rows(here / "run")[0]["clients"] == [0, 1, 2]
    assert "--cohort-size 3" in run_command(config, here / "run")
    command(*run[:-1], "run", "--cohort-size", 3, "--quiet")  # the same run
    command("resume", "run", "--data", "mine:with_clients", "--rounds", 2, "--quiet")
    assert len(rows(here / "run")) == 2
    refused = "cohort_size is 5, but there are only 3 clients"
    assert refused in command("run", *own, "--cohort-size", 5, "--out", "five", code=2).err
    command("compare", *own, "--methods", "fedavg", "--seeds", 0, "--jobs", 1, "--json", "--out", "rivals")
    assert rows(here / "rivals" / "fedavg-seed0")[0]["clients"] == [0, 1, 2]
    swept = ["sweep", *own, "--method", "fedavg", "--set", "batch_size=10,20", "--jobs", 1, "--json", "--out"]
    assert "--cohort-size 3" in json.loads(command(*swept, "swept").out)["command"]
    named = json.loads(command(*swept, "again", "--cohort-size", 3, "--cache", "swept/runs").out)
    assert "--cohort-size 3" in named["command"]
    assert len(list((here / "swept" / "runs").glob("*/config.json"))) == 2  # the same runs


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "theirs"],
        ["resume", "theirs", "--rounds", 3, "--quiet"],
        ["run", "--config", "theirs/config.json", "--out", "new", "--quiet"],
        ["compare", "--config", "theirs/config.json", "--methods", "fedavg", "--out", "new"],
        ["sweep", "--config", "theirs/config.json", "--set", "lr=0.1", "--validation", 0.1, "--out", "new"],
        ["data", "show", "--config", "theirs/config.json"],
    ],
    ids=lambda words: words[0],
)
def test_what_a_strangers_folder_names_is_asked_for(here, command, words):
    said = command(*words, code=2)
    assert (
        "asks for the data 'mine:with_clients', which is not built in, and importing it would run its code: name it"
        in said.err
    )
    assert said.err.count("\n") == 1
    assert not (here / "imported").exists()
    assert "mine" not in sys.modules
    assert not (here / "new").exists()


def test_reports_and_archives_import_nothing(theirs, here, command):
    command("report", theirs, "--out", "page.html")
    store = here / "store" / "runs" / ("0" * 20)
    store.parent.mkdir(parents=True)
    theirs.rename(store)
    said = command("pack", "store", "--out", "packed.json", code=2)
    assert "was run on the data of 'mine:with_clients', which an archive cannot identify" in said.err
    with pytest.raises(ValueError, match="asks for the data 'mine:with_clients'"):
        fedlada.load_run(store)
    opened = fedlada.load_run(store, fedlada.models.mlp(3, input_shape=(5,)))
    with pytest.raises(ValueError, match="asks for the data 'mine:with_clients'"):
        _ = opened.experiment
    with pytest.raises(ValueError, match="was run on the data of 'mine:with_clients': give them, as in evaluate"):
        opened.evaluate()
    assert not (here / "imported").exists()
    assert "mine" not in sys.modules


def test_who_names_the_data_or_trusts_the_folder_goes_on(theirs, here, command):
    command("resume", theirs, "--rounds", 2, "--data", "mine:with_clients", "--quiet")
    forget("mine")
    command("resume", theirs, "--rounds", 3, "--trust", "--quiet")
    assert len(rows(theirs)) == 3
    said = command("resume", theirs, "--data", "mine:data", code=2)
    assert "theirs has the data 'mine:with_clients', not 'mine:data': name that, or leave --data out" in said.err
    config = ["--config", theirs / "config.json", "--rounds", 1, "--quiet"]
    command("run", *config, "--data", "mine:with_clients", "--out", "named")
    command("run", *config, "--trust", "--out", "trusted")
    assert (
        rows(here / "named")[0]["test_loss"] == rows(here / "trusted")[0]["test_loss"] == rows(theirs)[0]["test_loss"]
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "mine:one_pair"], r"must be (train, test), got two arrays: return ((x, y), None)"),
        (["--data", "mine:broken"], "the data 'mine:broken' could not be made: KeyError: 'column'"),
        (["--data", "mine:absent"], "the data 'mine:absent' cannot be imported"),
        (["--data", "mine"], "the data 'mine' cannot be imported: write package.module:factory"),
        (["--data", "mine:with_tests"], "have test data by client: hold out a share, --client-test 0.2"),
        (["--data", "mine:data", "--dataset", "digits"], "give --dataset or --data, not both"),
        (["--data", "mine:data", "--data-dir", "."], "--data-dir has no effect on data of your own function"),
        (["--data", "mine:data", "--augment", "crop"], "mine:data has no images in bytes to augment"),
        (["--data", "mine:data", "--num-clients", 4], "num_clients has no effect on a natural partition"),
    ],
)
def test_wrong_data_are_one_sentence(here, command, words, sentence):
    said = command("run", *words, "--rounds", 1, "--out", "wrong", code=2)
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert not (here / "wrong").exists()


def test_classes_without_a_sample_are_said(here, command):
    x = np.random.default_rng(0).standard_normal((60, 5))
    np.savez(here / "from_one.npz", x=x, y=np.arange(60) % 2 + 1)
    np.savez(here / "gaps.npz", x=x, y=np.arange(60) % 2 * 8)
    np.savez(here / "whole.npz", x=x, y=np.arange(60) % 2)
    quick = [one for one in QUICK if one != "--quiet"] + ["--rounds", 1]
    for flags, said in (
        (["--dataset", "npz", "--data-dir", "from_one.npz"], "class 0 (of 0 to 2)"),
        (["--dataset", "npz", "--data-dir", "from_one.npz", "--validation", 0.5], "class 0 (of 0 to 2)"),
        (["--dataset", "npz", "--data-dir", "gaps.npz"], "classes 1, 2, 3, 4, 5 and 2 more (of 0 to 8)"),
        (["--data", "mine:from_one"], "class 0 (of 0 to 3)"),
        (["--dataset", "npz", "--data-dir", "whole.npz"], ""),
        (["--data", "mine:data"], ""),
        (["--data", "mine:datasets"], ""),
    ):
        line = f"fedlada: y has no sample of {said}: number the classes from 0\n"
        errors = command("run", *quick, *flags).err
        assert errors.count("y has no sample") == bool(said), errors
        assert not said or line in errors
    words = ["--dataset", "npz", "--data-dir", "from_one.npz", "--rounds", 1, "--jobs", 1]
    for name in (["compare", "--methods", "fedavg", "--seeds", "0,1"], ["sweep", "--set", "lr=0.1,0.01"]):
        assert command(*name, *words, "--out", name[0]).err.count("y has no sample of class 0 (of 0 to 2)") == 1
