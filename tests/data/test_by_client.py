"""One data set for each client: as a dict by name or as a list."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fedlada
from fedlada.data import IID, Images
from fedlada.data.by_client import by_client, pooled
from tasks import blobs, small_net

X, Y = blobs(num_samples=60)
CUTS = ((0, 30), (30, 37), (37, 60))
NAMES = ("north", "east", "a hospital")
PAIRS = [(X[start:end], Y[start:end]) for start, end in CUTS]
INDICES = [range(*cut) for cut in CUTS]


def datasets():
    return [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in PAIRS]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def run(data, model=None, **how):
    values = {"method": "scaffold", "rounds": 2, "lr": 0.1, "batch_size": 10, **how}
    return fedlada.simulate(model or small_net(), data, **values)


@pytest.mark.parametrize("make", [lambda: PAIRS, datasets], ids=["arrays", "datasets"])
def test_data_of_each_client_are_a_partition_with_names(make, tmp_path):
    expected = run((X, Y), test=(X, Y), partition=INDICES)
    listed, named = run(make(), test=make()), run(dict(zip(NAMES, make(), strict=True)), test=(X, Y), out=tmp_path)
    for result in (listed, named):
        assert torch.equal(result.server.params, expected.server.params)
        assert result.history["test_loss"] == expected.history["test_loss"]
    assert listed.history.client_names == ()
    assert named.history.client_names == named.history[:1].client_names == NAMES
    assert json.loads((tmp_path / "clients.json").read_text())["client_names"] == list(NAMES)
    again = run(dict(zip(NAMES, make(), strict=True)), test=(X, Y), out=tmp_path, rounds=3)
    assert again.history.client_names == NAMES
    assert len(again.history) == 3


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = small_net()

    def forward(self, a, b):
        return self.net(torch.cat([a, b], dim=1))


def test_several_inputs_are_no_clients():
    inputs = {"a": X[:, :1], "b": X[:, 1:]}
    assert by_client((inputs, Y)) is None
    assert by_client((tuple(inputs.values()), Y)) is None
    assert by_client([X, Y]) is None
    expected = run((inputs, Y), Two(), partition=INDICES).server.params
    for kind in (dict, tuple):
        parts = [({"a": x[:, :1], "b": x[:, 1:]} if kind is dict else (x[:, :1], x[:, 1:]), y) for x, y in PAIRS]
        assert torch.equal(run(dict(zip(NAMES, parts, strict=True)), Two()).server.params, expected)


def test_bytes_of_clients_are_scaled_together():
    x = np.random.default_rng(0).integers(0, 256, (60, 1, 2, 2), dtype=np.uint8)
    model = nn.Sequential(nn.Flatten(), small_net())
    parts = [(x[own], Y[own]) for own in INDICES]
    expected = run(Images(x, Y), model, partition=INDICES).server.params
    assert torch.equal(run(parts, model).server.params, expected)
    whole = Images(x, Y)
    images = [Images(x[own], Y[own], whole.mean, whole.std) for own in INDICES]
    assert torch.equal(run(images, model).server.params, expected)
    with pytest.raises(
        ValueError, match=r"client 1 has images with mean \(0\.\d+,\), and client 0 with \(0\.\d+,\): give all"
    ):
        run([Images(x[own], Y[own]) for own in INDICES], model)


def test_a_pooled_test_set_is_all_of_it():
    data = pooled(dict(zip(NAMES, PAIRS, strict=True)))
    assert torch.equal(data.y, torch.from_numpy(Y))
    assert by_client(PAIRS).sizes == (30, 7, 23)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([Stream(), Stream()], r"the data of client 0 are a stream: a dataset must be map-style \(with __len__ and"),
        ({"north": datasets()[0], "east": Stream()}, "the data of client 'east' are a stream: a dataset must be map"),
        ([(X, {"class": Y})] * 2, "y holds several targets, and a loss is given one tensor: pack them into one"),
        ({}, "there are no clients: the dict of their data is empty"),
        (
            {"x": X, "y": Y},
            r"a dict holds the data of each client, .* but 'x' is ndarray: .* \(\{\.\.\.\}, y\)",
        ),
        (
            {"a": PAIRS[0], "b": datasets()[1]},
            "the clients' data are of several kinds: give all as arr",
        ),
        (
            {"a": PAIRS[0], "b": (X[:, :2], Y)},
            r"client 'b' has float64 of shape \(60, 2\) where client 'a' has flo",
        ),
        ({"a": PAIRS[0], "b": (X, Y[:3])}, "client 'b' must have one row of x and y per sample"),
        (
            {"a": PAIRS[0], "b": ({"c": X}, Y)},
            "client 'b' has the inputs c, and client 'a' has one input: give all the same",
        ),
        ([DataLoader(one) for one in datasets()], r"^a DataLoader makes batches of its own: give its \.dataset"),
        ({"a": DataLoader(datasets()[0])}, r"^a DataLoader makes batches of its own: give its \.dataset"),
        ({"a": datasets()[0], "b": DataLoader(datasets()[1])}, r"^a DataLoader makes batches of its own: give its \.d"),
        ({1: PAIRS[0], "1": PAIRS[1]}, "two clients have the same name"),
    ],
)
def test_what_is_no_data_of_clients_is_said(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        run(data)


def test_a_partition_beside_them_is_refused():
    with pytest.raises(ValueError, match="partition= has no effect on data that is given by client"):
        run(PAIRS, partition=IID(num_clients=3))
