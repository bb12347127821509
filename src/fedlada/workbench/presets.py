"""The default federation of each data set, and which methods were ahead on it."""

from __future__ import annotations

from typing import Any

from fedlada.data.own import is_own_data
from fedlada.methods.factory import is_own
from fedlada.training.suggested import suited

PLAIN: dict[str, Any] = {
    "num_clients": 100,
    "cohort_size": 10,
    "partition": "dirichlet",
    "concentration": 0.6,
    "batch_size": 50,
    "local_epochs": 1,
    "augment": "none",
    "model": "cnn-gn",
}
PAPER: dict[str, Any] = {**PLAIN, "local_epochs": 2, "augment": "authors", "model": "resnet18-gn"}
SMALL: dict[str, Any] = {**PLAIN, "num_clients": 10, "cohort_size": 5, "batch_size": 20}

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {**PLAIN, "num_clients": 50, "cohort_size": 5, "concentration": 0.1, "batch_size": 10, "local_epochs": 5},
    "mnist": PLAIN,
    "fashion-mnist": PLAIN,
    "cifar10": {**PAPER, "local_epochs": 5},
    "cifar100": PAPER,
    "tinyimagenet": PAPER,
    "folder": SMALL,
    "npz": {**SMALL, "model": "mlp"},
    "leaf": {**SMALL, "num_clients": None, "partition": "natural", "model": "mlp"},
    "docstrings": {**SMALL, "num_clients": None, "partition": "natural", "model": "text-transformer"},
    "shakespeare": {**SMALL, "num_clients": None, "cohort_size": 10, "partition": "natural", "model": "char-lstm"},
}
"""The default federation of each data set; every value is a flag of its own."""
OWN: dict[str, Any] = {**SMALL, "num_clients": None, "partition": "natural", "model": "mlp"}
"""That of a user's own function, which alone knows the clients."""
ADVICE: dict[str, str] = {
    "digits": "to 95 %, three seeds, level within their spread: fedcm, fedlada and scaffold in rounds; "
    "fedcm, fedprox, fedavg and fedadam in bytes",
    "cifar10": "after an equal search, test data, round 600: three seeds fedsmoo 85.4 ± 0.3 %, mofedsam 84.7 ± 0.3, "
    "fedlada_sam 83.3 ± 0.1; five seeds scaffold 82.1 ± 0.3, fedcm 82.0 ± 0.3, fedlada 80.4 ± 0.2, "
    "localadam 80.0 ± 0.3",
    "cifar100": "after an equal search, test data, round 600: five seeds fedcm 49.7 ± 0.1 %, scaffold 49.5 ± 0.3, "
    "fedlada 46.3 ± 0.3, fedadam 46.2 ± 0.4; three seeds mofedsam 47.3 ± 0.5, fedlada_sam 47.2 ± 0.2, "
    "fedsmoo 47.2 ± 0.2; fedcm and fedlada are level at round 100 (39 %); fedadam and fedcm have the fewest bytes to "
    "40 %, fedcm to 45 %",
    "tinyimagenet": "one seed, after an unequal search: fedlada is first to 35 %, scaffold ends higher; "
    "fedadam has the fewest bytes to 28 %, fedcm to 35 %",
}
"""Which method was ahead with these values (`docs/results.md` has spread and limitations)."""


def settings_of(dataset: str) -> dict[str, Any]:
    """The default federation of a data set, or of a user's own."""
    return OWN if is_own_data(dataset) else SETTINGS[dataset]


def preset(dataset: str, method: str) -> dict[str, Any]:
    """Every flag that depends on the data set or the method, and `hyper`."""
    # The defaults of a user's method are resolved where it is imported, not here.
    return {**settings_of(dataset), **({"hyper": {}, "lr_decay": 1.0} if is_own(method) else suited(method, dataset))}
