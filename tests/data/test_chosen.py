"""Subsets of samples: their order, their inputs, and runs on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import fedlada
from fedlada.data import Images, as_samples
from fedlada.federation.client_test import hold_out
from fedlada.training.resolve import resolve_client_test

CPU = torch.device("cpu")
RANDOM = np.random.default_rng(0)
INTEGERS, LABELS = RANDOM.integers(0, 9, (60, 5)), np.arange(60) % 3


def numbered(number, as_dataset):
    x, y = torch.arange(number, dtype=torch.float32)[:, None], torch.arange(number)
    return as_samples(TensorDataset(x, y) if as_dataset else (x, y), CPU, torch.float32)


@pytest.mark.parametrize("as_dataset", [False, True])
def test_all_samples_in_another_order(as_dataset):
    samples, rows = numbered(4, as_dataset), np.array([3, 1, 2, 0])
    chosen = samples.chosen(rows)
    assert chosen.labels().tolist() == rows.tolist()
    assert chosen.batch(np.arange(4))[1].tolist() == rows.tolist()
    assert samples.chosen(np.arange(4)) is samples


@pytest.mark.parametrize("seed", range(6))
def test_clients_that_share_samples_are_tested_on_their_own(seed):
    clients = [np.arange(2), np.arange(2)]
    _, found = resolve_client_test(0.5, clients, (), numbered(2, False), seed, None)
    _, held_out = hold_out(clients, 0.5, seed)
    for client, own in enumerate(held_out):
        assert found.samples.batch(found.rows(client))[1].tolist() == own.tolist()


def test_a_run_on_some_of_the_samples():
    """Integers that the model wants as floats, and images in bytes, are read as those of all samples."""

    def run(data, model):
        return fedlada.simulate(model, data, rounds=1, seed=3, progress=False, device="cpu").server.params

    pixels, rows = RANDOM.integers(0, 255, (60, 1, 8, 8)).astype(np.uint8), np.arange(10, 60)
    for x, model in ((INTEGERS, lambda: nn.Linear(5, 3)), (pixels, lambda: fedlada.models.mlp(3))):
        some = as_samples((x, LABELS), CPU, torch.float32).chosen(rows)
        assert torch.equal(run(some, model), run((x[rows], LABELS[rows]), model))
    images = [Images(pixels[own], LABELS[own], (0.5,), (0.25,)) for own in (slice(None), rows)]
    some = as_samples(images[0], CPU, torch.float32).chosen(rows)
    assert torch.equal(run(some, lambda: fedlada.models.mlp(3)), run(images[1], lambda: fedlada.models.mlp(3)))


class Parity(Dataset):
    """Digits of which only the parity is wanted, as torchvision's data sets transform their targets."""

    targets = tuple(number % 10 for number in range(100))

    def target_transform(self, target):
        return target % 2

    def __len__(self):
        return 100

    def __getitem__(self, number):
        return torch.full((5,), float(number)), self.target_transform(self.targets[number])


def test_labels_are_those_that_are_trained():
    for dataset in (Parity(), Subset(Parity(), range(50))):
        samples = as_samples(dataset, CPU, torch.float32)
        assert samples.labels().tolist() == samples.batch(np.arange(len(samples)))[1].tolist()
    fedlada.simulate(lambda: nn.Linear(5, 2), Parity(), rounds=1, attack="label-flip:0.5", progress=False, device="cpu")


def test_arrays_that_torch_does_not_take():
    """Backwards, as BGR made of RGB, and of another byte order, as many file formats have them."""
    x = RANDOM.standard_normal((6, 3, 2)).astype(np.float32)
    for given in (x[:, ::-1], x.astype(">f4")):
        found = as_samples((given, LABELS[:6][::-1]), CPU, torch.float32)
        assert np.array_equal(found.x.numpy(), given.astype("=f4"))
        assert found.labels().tolist() == LABELS[:6][::-1].tolist()
