"""Every figure that the paper prints in a table: accuracies in percent, `NEVER` where a target was never reached."""

from __future__ import annotations

import math

NEVER = math.inf

DATASETS = ("cifar10", "cifar100", "tinyimagenet")
TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "TinyImageNet",
    "fashion-mnist": "Fashion-MNIST",
    "digits": "digits",
}
NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fedcm": "FedCM",
    "fedadam": "FedAdam",
    "fedadam_amended": "FedAdam(*)",
    "localadam": "LocalAdam",
    "fedlada": "FedLADA",
    "fedavgm": "FedAvgM",
    "fedadagrad": "FedAdagrad",
    "fedyogi": "FedYogi",
    "feddyn": "FedDyn",
    "fedsam": "FedSAM",
    "mofedsam": "MoFedSAM",
    "fedgamma": "FedGAMMA",
    "fedspeed": "FedSpeed",
    "fedsmoo": "FedSMOO",
    "fedlada_sam": "FedLADA with SAM",
    "fednova": "FedNova",
}
SEVEN = ("fedavg", "fedprox", "scaffold", "fedcm", "fedadam", "localadam", "fedlada")
"""The methods of the tables on speed, in their order."""

TRAIN_TARGET = 98.0
TEST_TARGETS = {"cifar10": 84.0, "cifar100": 51.0, "tinyimagenet": 38.0}


def _by_dataset(cifar10: float, cifar100: float, tinyimagenet: float) -> dict[str, float]:
    return dict(zip(DATASETS, (cifar10, cifar100, tinyimagenet), strict=True))


SPEED_TRAIN: dict[str, dict[str, float]] = {
    "fedavg": _by_dataset(977, 1198, 1474),
    "fedprox": _by_dataset(913, 1166, 1508),
    "scaffold": _by_dataset(740, 1017, 1338),
    "fedcm": _by_dataset(1429, 966, 1754),
    "fedadam": _by_dataset(2554, 2778, 2834),
    "localadam": _by_dataset(575, 746, 971),
    "fedlada": _by_dataset(765, 618, 878),
}
"""T1: rounds to the training target."""
SPEED_TEST: dict[str, dict[str, float]] = {
    "fedavg": _by_dataset(NEVER, NEVER, NEVER),
    "fedprox": _by_dataset(NEVER, NEVER, NEVER),
    "scaffold": _by_dataset(1177, 677, 494),
    "fedcm": _by_dataset(1211, 721, 455),
    "fedadam": _by_dataset(NEVER, 1114, 1397),
    "localadam": _by_dataset(NEVER, NEVER, NEVER),
    "fedlada": _by_dataset(598, 447, 269),
}
"""T1: rounds to the test targets."""

COMBINATIONS_BASE = 34.5
COMBINATIONS: dict[str, float] = {
    "fedavg": 0.0,
    "fedcm": 6.6,
    "fedadam": 4.3,
    "fedadam_amended": 0.5,
    "localadam": -0.4,
    "fedlada": 7.4,
}
"""T2: points above FedAvg on TinyImageNet after 1500 rounds."""

LOCAL_INTERVAL: dict[int, tuple[float, int]] = {2: (41.9, 878), 4: (40.2, 614), 10: (36.2, 959), 20: (33.8, 1327)}
"""T3: best accuracy on TinyImageNet and its round, by local epochs."""

AMENDED_WEIGHT: dict[float, float] = {0.01: 29.5, 0.05: 41.9, 0.1: 40.1, 0.2: 38.8, 0.5: 36.5, 1.0: 34.1}
"""T4: accuracy on TinyImageNet by alpha."""

CONVERGED: dict[str, dict[str, tuple[float, int]]] = {
    "fedavg": {"cifar10": (81.8, 1511), "cifar100": (45.4, 1664), "tinyimagenet": (34.5, 1474)},
    "fedcm": {"cifar10": (86.8, 2089), "cifar100": (52.5, 1698), "tinyimagenet": (41.1, 1754)},
    "fedadam": {"cifar10": (86.4, 3031), "cifar100": (52.6, 2324), "tinyimagenet": (41.3, 2834)},
    "fedlada": {"cifar10": (86.0, 1313), "cifar100": (51.4, 885), "tinyimagenet": (41.9, 878)},
}
"""T5: test accuracy when training has converged, and the round of that."""
AT_1500: dict[str, dict[str, float]] = {
    "fedavg": _by_dataset(81.8, 45.3, 34.5),
    "fedcm": _by_dataset(84.9, 52.0, 40.6),
    "fedadam": _by_dataset(83.7, 51.3, 38.8),
    "fedlada": _by_dataset(86.1, 52.6, 41.9),
}
"""T5: test accuracy after 1500 rounds."""

STAGE_TARGETS: dict[str, tuple[float, float]] = {
    "cifar10": (70.0, 80.0),
    "cifar100": (40.0, 45.0),
    "tinyimagenet": (28.0, 35.0),
}
STAGES: dict[str, dict[str, tuple[float, float]]] = {
    "fedavg": {"cifar10": (94.0, 536.9), "cifar100": (299.1, 535.7), "tinyimagenet": (207.7, 421.1)},
    "fedprox": {"cifar10": (90.9, 511.1), "cifar100": (289.5, 501.6), "tinyimagenet": (214.6, 456.5)},
    "scaffold": {"cifar10": (85.1, 262.5), "cifar100": (135.7, 351.4), "tinyimagenet": (191.3, 362.2)},
    "fedcm": {"cifar10": (71.5, 286.7), "cifar100": (120.5, 200.0), "tinyimagenet": (115.9, 245.8)},
    "fedadam": {"cifar10": (96.1, 611.2), "cifar100": (254.2, 407.4), "tinyimagenet": (242.1, 618.7)},
    "localadam": {"cifar10": (65.5, NEVER), "cifar100": (169.1, 361.9), "tinyimagenet": (142.4, NEVER)},
    "fedlada": {"cifar10": (44.6, 186.4), "cifar100": (93.9, 143.7), "tinyimagenet": (110.2, 170.2)},
}
"""T6: rounds to the targets of the early and of the middle stage, mean of five seeds."""

SCALED_SCAFFOLD: dict[float, float] = {
    0.0: 78.32,
    0.25: 80.74,
    0.5: 81.09,
    0.75: 81.72,
    1.0: 81.77,
    1.25: 81.05,
    1.5: 80.62,
}
"""T7: accuracy on CIFAR-10 by the scale of SCAFFOLD's correction."""

VECTORS: dict[str, int] = {
    "fedavg": 1,
    "fedprox": 1,
    "scaffold": 2,
    "fedcm": 2,
    "fedadam": 1,
    "localadam": 2,
    "fedlada": 2,
}
"""T8: the cost of a round by the paper's count, in Nd (a vector of the model's size for each active client)."""
COST_TOTALS: dict[str, tuple[int, int | None]] = {
    "fedavg": (94, 537),
    "fedprox": (91, 511),
    "scaffold": (170, 524),
    "fedcm": (142, 572),
    "fedadam": (96, 611),
    "localadam": (130, None),
    "fedlada": (90, 372),
}
"""T8: total cost to 70 % and to 80 % on CIFAR-10 in Nd, as printed."""
COST_RATIOS: dict[str, tuple[float, float | None]] = {
    "fedavg": (1.0, 1.0),
    "fedprox": (0.97, 0.95),
    "scaffold": (1.80, 0.97),
    "fedcm": (1.51, 1.06),
    "fedadam": (1.02, 1.13),
    "localadam": (1.38, None),
    "fedlada": (0.95, 0.69),
}
"""T8: total cost to 70 % and to 80 % on CIFAR-10 relative to FedAvg, as printed (truncated, not rounded)."""

SIMULATOR: dict[str, dict[float, float]] = {
    "fedavg": {0.6: 80.65, 0.3: 79.75, 0.1: 77.31},
    "fedprox": {0.6: 81.05, 0.3: 79.52, 0.1: 76.86},
    "fedadam": {0.6: 82.56, 0.3: 82.12, 0.1: 77.58},
    "scaffold": {0.6: 83.53, 0.3: 82.75, 0.1: 79.92},
    "feddyn": {0.6: 84.22, 0.3: 83.22, 0.1: 78.96},
    "fedcm": {0.6: 83.81, 0.3: 83.44, 0.1: 78.92},
    "fedgamma": {0.6: 84.80, 0.3: 83.81, 0.1: 80.72},
    "mofedsam": {0.6: 85.74, 0.3: 85.14, 0.1: 81.58},
    "fedspeed": {0.6: 86.33, 0.3: 85.39, 0.1: 82.26},
    "fedsmoo": {0.6: 86.87, 0.3: 86.04, 0.1: 83.30},
}
"""Best test accuracy in 1000 rounds of CIFAR-10 by Dirichlet concentration, of the authors' simulator's README."""
SIMULATOR_SECONDS = {
    "fedavg": 15.86,
    "fedprox": 19.78,
    "fedadam": 15.91,
    "scaffold": 20.09,
    "feddyn": 20.82,
    "fedcm": 20.74,
    "fedgamma": 30.13,
    "mofedsam": 29.06,
    "fedspeed": 29.48,
    "fedsmoo": 30.43,
}
"""Seconds per round of that simulator on a V100."""

FEDOPT: dict[str, dict[str, float]] = {
    "cifar10": {"fedavg": 72.8, "fedavgm": 77.4, "fedadagrad": 73.1, "fedadam": 77.4, "fedyogi": 78.0},
    "cifar100": {"fedavg": 44.7, "fedavgm": 52.4, "fedadagrad": 47.9, "fedadam": 52.5, "fedyogi": 52.4},
}
"""Reddi et al. (2021): mean accuracy of the last 100 of 4000 rounds."""
FEDOPT_VALUES: dict[str, dict[str, tuple[float, float, float | None]]] = {
    "cifar10": {
        "fedavg": (10**-0.5, 1.0, None),
        "fedavgm": (10**-1.5, 10**-0.5, None),
        "fedadagrad": (10**-1.5, 0.1, 1e-2),
        "fedadam": (10**-1.5, 1e-2, 1e-3),
        "fedyogi": (10**-1.5, 1e-2, 1e-3),
    },
    "cifar100": {
        "fedavg": (0.1, 10**0.5, None),
        "fedavgm": (10**-1.5, 1.0, None),
        "fedadagrad": (0.1, 0.1, 1e-2),
        "fedadam": (10**-1.5, 1.0, 0.1),
        "fedyogi": (10**-1.5, 1.0, 0.1),
    },
}
"""Their client learning rate, server learning rate and tau."""
