"""The federation of an experiment: partition, client sampling and learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedlada.data.npz import count_clients
from fedlada.data.source import Source
from fedlada.federation.client_sizes import check_enough
from fedlada.federation.cohorts import Bernoulli, Cohorts, FixedSize
from fedlada.federation.partition import IID, ByKey, Dirichlet, Pachinko, Partition, Pathological
from fedlada.federation.schedules import Debiased, Schedule, WarmUp, as_schedule
from fedlada.methods.combine import is_private
from fedlada.methods.validation import count
from fedlada.workbench.presets import PLAIN

Full = Any
"""A resolved experiment, which is built on top of this."""


def suited_clients(given: Full, suited: dict[str, Any]) -> dict[str, Any]:
    """A preset with the clients that an `.npz` file names, unless it is partitioned anew; at most as many per round."""
    partition, sizes = given.partition or suited["partition"], [suited["cohort_size"]]
    if named := named_clients(given):
        partition, sizes = "natural", [*sizes, named]
    num_clients = suited["num_clients"]
    if partition == "natural":  # their number comes from the data
        num_clients = None
    elif given.partition is not None and num_clients is None:
        num_clients = PLAIN["num_clients"]
    if (known := given.num_clients or num_clients) is not None:
        sizes.append(known)
    return {**suited, "partition": partition, "num_clients": num_clients, "cohort_size": min(sizes)}


def with_known_cohort(given: Full, read: Callable[[], Source]) -> Any:
    """The same experiment; its default number of clients per round is at most that of the clients which the data name.

    The data are read only if the number of clients comes from them.
    """
    full = given.resolved()
    if given.cohort_size is not None or full.num_clients is not None:
        return given
    num_clients = num_clients_of(full, read())
    return given if full.cohort_size <= num_clients else replace(given, cohort_size=num_clients)


def named_clients(given: Full) -> int | None:
    """The number of clients that an `.npz` file names, unless it is partitioned anew; None if it names none."""
    if given.dataset != "npz" or given.data_dir is None or given.partition not in (None, "natural"):
        return None
    return count_clients(given.data_dir) or None


def check_clients(given: Full, full: Full) -> None:
    """Refuse impossible numbers of clients, and options without effect."""
    count("cohort_size", full.cohort_size)
    if full.num_clients is not None:
        FixedSize(full.cohort_size).check(full.num_clients)
    if full.partition == "natural" and given.num_clients is not None:
        raise ValueError(
            "num_clients has no effect on a natural partition, whose number of clients comes from the data; partition "
            "dirichlet or iid divides the samples anew"
        )
    if full.partition == "natural" and given.partition is None and given.concentration is not None:
        raise ValueError(f"{full.dataset} names its clients: concentration needs partition dirichlet")
    if full.partition in ("pathological", "pachinko", "natural") and given.size_spread != 0:
        raise ValueError(f"size_spread has no effect on a {full.partition} partition: leave it out")
    if full.partition == "natural" and given.validation and is_private(given.combiner):
        raise ValueError(
            "validation is measured on samples of the data's own clients, which private must hide: leave it out, or "
            "take partition dirichlet or iid"
        )
    if full.partition != "natural":
        partition_of(full, None)


def partition_of(full: Full, source: Source | None) -> Partition:
    """The partition of the samples among clients."""
    if full.partition == "natural":
        if source is not None and source.partition is not None:
            return source.partition
        if source is None or source.client is None:
            ways = ", or save their clients as an array `client` beside x and y" if full.dataset == "npz" else ""
            raise ValueError(
                f"{full.dataset} does not say which client a sample belongs to: choose a --partition{ways}"
            )
        return ByKey(keys=source.client.tolist(), names=source.names_of_clients())
    sizes: Any = {"num_clients": full.num_clients, "size_spread": full.size_spread}
    if full.partition == "iid":
        return IID(**sizes)
    if full.partition == "pathological":
        return Pathological(num_clients=sizes["num_clients"], classes_per_client=full.classes_per_client)
    assert full.concentration is not None
    if full.partition == "pachinko":
        groups = (0,) if source is None else source.class_groups  # before the data are read any will do
        if groups is None:
            raise ValueError(f"the classes of {full.dataset} have no groups: choose --partition dirichlet")
        return Pachinko(
            num_clients=sizes["num_clients"],
            groups=groups,
            concentration=full.concentration,
            fine_concentration=full.fine_concentration,
        )
    return Dirichlet(concentration=full.concentration, refill=full.refill, **sizes)


def cohorts_of(full: Full, source: Source) -> Cohorts:
    """The sampling of cohorts."""
    assert full.cohort_size is not None
    num_clients = num_clients_of(full, source)
    check_enough(source.num_samples, num_clients)
    FixedSize(full.cohort_size).check(num_clients)
    return FixedSize(full.cohort_size) if full.cohorts == "fixed" else Bernoulli(full.cohort_size / num_clients)


def num_clients_of(full: Full, source: Source) -> int:
    """The number of clients, which may come from the data."""
    if full.num_clients is not None:
        return int(full.num_clients)
    partition = partition_of(full, source)
    if isinstance(partition, ByKey):
        return len(set(partition.keys))
    labels = source.labels("train") if partition.needs_labels else np.zeros(source.num_samples)
    return len(partition.assign(labels, full.seed))


def schedule_of(full: Full) -> Schedule:
    """The clients' learning rate in each round."""
    if full.lr is None:
        raise ValueError(
            f"lr must be given with your own method {full.method}: only a built-in name comes with a default rate"
        )
    assert full.lr_decay is not None
    plain = as_schedule(full.lr, full.lr_decay)
    rising = WarmUp(plain, full.warmup) if full.warmup != 0 else plain
    if full.debias and "alpha" not in full.hyper:
        raise ValueError(f"debias is for methods with an alpha, which {full.method} does not have")
    return Debiased(rising, full.hyper["alpha"]) if full.debias else rising
