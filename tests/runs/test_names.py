"""Names of runs, clients and classes, in a run's folder and in what is read from it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import fedlada
from fedlada.data import ByKey
from fedlada.runs.clients import Names, read_clients, read_names
from fedlada.workbench.report.records import read_runs
from tasks import blobs, small_net

X, Y = blobs(num_samples=60)
KEYS = np.array(["zoe", "anna", "bob"])[np.arange(60) % 3]


class Named(TensorDataset):
    classes = ("red", "green", "blue")


def run(data=(X, Y), **how):
    return fedlada.simulate(small_net(), data, **{"method": "fedavg", "rounds": 1, "batch_size": 10, **how})


@pytest.mark.parametrize(
    ("partition", "names"),
    [
        (ByKey(keys=KEYS), ("anna", "bob", "zoe")),
        (ByKey(keys=np.arange(60) % 2 * 17), ("0", "17")),
        ({"late": range(30, 60), "early": range(30)}, ("late", "early")),
        ([range(30), range(30, 60)], ()),
        (None, ()),
    ],
)
def test_names_of_clients_are_stored_in_their_order(partition, names, tmp_path):
    result = run(partition=partition, out=tmp_path)
    assert result.history.client_names == names
    assert read_names(tmp_path) == Names(names, ())
    assert fedlada.load_run(tmp_path, small_net()).history.client_names == names
    counts = read_clients(tmp_path)
    if names[:1] == ("anna",):
        assert counts[2] == np.bincount(Y[KEYS == "zoe"], minlength=3).tolist()
    assert ("client_names" in json.loads((tmp_path / "clients.json").read_text())) == bool(names)


def test_names_of_classes_are_stored(tmp_path):
    result = run(Named(torch.from_numpy(X), torch.from_numpy(Y)), out=tmp_path)
    assert result.history.class_names == Named.classes
    assert read_names(tmp_path) == Names((), Named.classes)
    assert read_names(tmp_path).label(1) == "green"
    assert read_names(tmp_path).label(7) == "7"


def test_a_run_has_the_name_it_is_given(tmp_path):
    result = run(name="wide", out=tmp_path / "r")
    assert result.name == "wide"
    assert result.plot("train_loss").axes[0].get_legend_handles_labels()[1] == ["wide"]
    assert json.loads((tmp_path / "r" / "config.json").read_text())["name"] == "wide"
    assert read_runs([tmp_path])[0].label == "wide, seed 0"
    again = run(name="wider", out=tmp_path / "r", rounds=2)  # another name is no other run
    assert len(again.history) == 2
    assert read_runs([tmp_path])[0].group == "wider"


def test_a_folder_of_before_goes_on_without_names(tmp_path):
    run(partition=ByKey(keys=KEYS), out=tmp_path)
    stored = json.loads((tmp_path / "clients.json").read_text())
    (tmp_path / "clients.json").write_text(json.dumps({k: v for k, v in stored.items() if k != "client_names"}))
    assert len(run(partition=ByKey(keys=KEYS), out=tmp_path, rounds=2).history) == 2
    assert read_names(tmp_path) == Names()
