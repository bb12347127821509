"""Scales of a reproduction: the paper's own setting, a small one in minutes, or a smoke test in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlada.paper.published import DATASETS, STAGE_TARGETS, TEST_TARGETS, TRAIN_TARGET

FASHION_MNIST_PLACES = ("data", "/usr/share/datasets")
"""Where Fashion-MNIST is looked for besides --data-dir: where `fedlada data fetch` and Debian's package put it."""


@dataclass(frozen=True)
class Accuracies:
    """The target accuracies of tables, in 0..1."""

    early: float
    middle: float
    test: float
    train: float


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Data, sizes and lengths of one scale."""

    name: str
    datasets: tuple[str, ...]
    """The data sets that stand for the paper's three; one stands for all."""
    curve: int
    """Rounds of the curves: the paper's 1500."""
    longest: int
    """Longest run towards a target: the paper's latest is at 3031."""
    lenet: int
    """Rounds of the study of activations: the paper's 4000."""
    eval_every: int
    eval_train_every: int
    epochs: Mapping[int, int]
    """Local epochs for the paper's 2, 4, 5, 10 and 20."""
    accuracies: Mapping[str, Accuracies]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of every experiment that differ from the data set's defaults."""
    lenet_models: Mapping[str, str] = field(default_factory=dict)
    for_lenet: Scale | None = None
    """The scale of the study of activations: convolutions are slow on a CPU."""
    bytes_unit: tuple[str, float] = ("MB", 1e6)
    """Unit of traffic in tables."""
    checkpoint_every: int = 25
    checkpoint_minutes: float | None = None


FULL = Scale(
    name="full",
    datasets=DATASETS,
    curve=1500,
    longest=3100,
    lenet=4000,
    eval_every=5,
    eval_train_every=25,
    epochs={2: 2, 4: 4, 5: 5, 10: 10, 20: 20},
    accuracies={
        name: Accuracies(
            early=STAGE_TARGETS[name][0] / 100,
            middle=STAGE_TARGETS[name][1] / 100,
            test=TEST_TARGETS[name] / 100,
            train=TRAIN_TARGET / 100,
        )
        for name in DATASETS
    },
    settings={"refill": True},
    bytes_unit=("GB", 1e9),
    lenet_models={"GeLU": "lenet-gelu", "SMU": "lenet-smu"},
    # A checkpoint of SCAFFOLD's hundred client states takes longer than 50 rounds on a GPU: save by minutes instead.
    checkpoint_every=500,
    checkpoint_minutes=3.0,
)

QUICK_ON_DIGITS = Scale(
    name="quick",
    datasets=("digits",),
    curve=100,
    longest=120,
    lenet=40,
    eval_every=1,
    eval_train_every=5,
    epochs={2: 2, 4: 4, 5: 5, 10: 10, 20: 20},
    accuracies={"digits": Accuracies(early=0.85, middle=0.92, test=0.95, train=0.95)},
    settings={"model": "mlp", "concentration": 0.1, "num_clients": 50, "cohort_size": 5, "batch_size": 10},
    lenet_models={"GeLU": "fedlada.paper.small_lenet:gelu", "SMU": "fedlada.paper.small_lenet:smu"},
)

QUICK = replace(
    QUICK_ON_DIGITS,
    datasets=("fashion-mnist",),
    eval_every=2,
    eval_train_every=10,
    epochs={2: 1, 4: 2, 5: 1, 10: 5, 20: 10},
    accuracies={"fashion-mnist": Accuracies(early=0.75, middle=0.80, test=0.83, train=0.85)},
    settings={"model": "mlp", "concentration": 0.1, "num_clients": 100, "cohort_size": 10, "batch_size": 50},
    for_lenet=QUICK_ON_DIGITS,
)

SMOKE = replace(
    QUICK_ON_DIGITS,
    name="smoke",
    curve=2,
    longest=3,
    lenet=2,
    eval_train_every=1,
    epochs=dict.fromkeys((2, 4, 5, 10, 20), 1),
    accuracies={"digits": Accuracies(early=0.15, middle=0.3, test=0.5, train=0.5)},
    settings={"model": "mlp", "concentration": 0.6, "num_clients": 20, "cohort_size": 2, "batch_size": 40},
)

SCALES = ("smoke", "quick", "full")


def scale_of(name: str, data_dir: str | None) -> tuple[Scale, str | None]:
    """The scale of that name, and the folder of its data."""
    if name == "full":
        return FULL, data_dir
    if name == "smoke":
        return SMOKE, None
    place = _fashion_mnist(data_dir)
    return (QUICK, place) if place is not None else (QUICK_ON_DIGITS, None)


def _fashion_mnist(data_dir: str | None) -> str | None:
    """The folder in which Fashion-MNIST lies, if it is found."""
    for place in (data_dir, *FASHION_MNIST_PLACES):
        # MNIST's files have the same names: only a folder that is named so, or that the user named, is taken.
        own = [] if place is None else [Path(place) / "fashion-mnist", *([Path(place)] if place == data_dir else [])]
        if any(list(folder.glob("train-images-idx3-ubyte*")) for folder in own):
            return place
    return None
