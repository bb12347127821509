"""Partitions: which samples belong to which client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from fedlada.federation.client_sizes import check_enough, check_spread, client_sizes
from fedlada.federation.randomness import Ints, generator
from fedlada.methods.validation import count, positive

Labels = np.ndarray[Any, Any]


class Partition(ABC):
    """A rule that assigns samples to clients; the same seed gives the same partition."""

    needs_labels = True

    @abstractmethod
    def assign(self, labels: Labels, seed: int) -> list[Ints]:
        """One sorted array of sample indices per client; the same labels and seed give the same ones.

        `simulate(partition=...)` takes them too, which holds one partition fixed over several seeds.
        """

    def client_names(self) -> tuple[str, ...]:
        """The names of the clients in the order of their indices, if they have any."""
        return ()


@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """Every sample once, assigned at random."""

    num_clients: int
    size_spread: float = 0.0
    """Sigma of the log-normal client sizes; 0 makes all equal, to within one sample."""

    needs_labels = False

    def __post_init__(self) -> None:
        count("num_clients", self.num_clients)
        check_spread(self.size_spread)

    def assign(self, labels: Labels, seed: int) -> list[Ints]:
        random = generator(seed, "partition")
        sizes = client_sizes(len(labels), self.num_clients, self.size_spread, random)
        return _sorted(np.split(random.permutation(len(labels)), np.cumsum(sizes)[:-1]))


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each client draws its mix of classes from a symmetric Dirichlet; the lower the concentration, the more skewed.

    Without `refill` each sample is used exactly once: when a class is exhausted, the rest of a client's share comes
    from the remaining classes. With `refill`, as in the authors' simulator, an exhausted class starts again: the mixes
    are exact, some samples repeat across clients and others are never used.
    """

    num_clients: int
    concentration: float = 0.6
    refill: bool = False
    size_spread: float = 0.0
    """Sigma of the log-normal client sizes; 0 makes all equal, to within one sample."""

    def __post_init__(self) -> None:
        count("num_clients", self.num_clients)
        positive("concentration", self.concentration)
        check_spread(self.size_spread)

    def assign(self, labels: Labels, seed: int) -> list[Ints]:
        """One sorted array of sample indices per client, whose classes follow the client's mix.

        The same labels and seed give the same ones. `simulate(partition=...)` takes them too.
        """
        random = generator(seed, "partition")
        pools = [random.permutation(pool) for pool in _by_class(_whole_numbers(labels))]
        sizes = client_sizes(len(labels), self.num_clients, self.size_spread, random)
        mixes = _class_mixes(self.num_clients, len(pools), self.concentration, random)
        counts = np.zeros((self.num_clients, len(pools)), dtype=np.int64)
        left = np.array([len(pool) for pool in pools], dtype=np.int64)
        for client in random.permutation(self.num_clients):
            if self.refill:
                counts[client] = random.multinomial(sizes[client], mixes[client])
            else:
                counts[client] = _draw_within(left, sizes[client], mixes[client], random)
                left -= counts[client]
        return _sorted(_take(pools, counts, random))


@dataclass(frozen=True, kw_only=True)
class Pachinko(Partition):
    """Classes in groups: each client draws its mix of groups, and within each group its mix of classes.

    The Pachinko allocation of Reddi et al. (2021) for CIFAR-100. Each sample is used exactly once: an exhausted class
    leaves its share to the others of its group, an exhausted group to the other groups.
    """

    num_clients: int
    groups: Sequence[int]
    """The group of each class, in the order of the class indices."""
    concentration: float = 0.1
    """Dirichlet concentration over groups; the lower, the more clients differ."""
    fine_concentration: float = 10.0
    """Dirichlet concentration over the classes of a group."""

    def __post_init__(self) -> None:
        count("num_clients", self.num_clients)
        positive("concentration", self.concentration)
        positive("fine_concentration", self.fine_concentration)

    def assign(self, labels: Labels, seed: int) -> list[Ints]:
        random = generator(seed, "partition")
        pools = [random.permutation(pool) for pool in _by_class(_whole_numbers(labels))]
        if len(pools) != len(self.groups):
            raise ValueError(f"groups are given for {len(self.groups)} classes, but the data has {len(pools)}")
        names, group = np.unique(np.asarray(self.groups), return_inverse=True)
        sizes = client_sizes(len(labels), self.num_clients, 0.0, random)
        coarse = _class_mixes(self.num_clients, len(names), self.concentration, random)
        fine = np.zeros((self.num_clients, len(pools)))
        for number in range(len(names)):
            members = group == number
            fine[:, members] = _class_mixes(self.num_clients, int(members.sum()), self.fine_concentration, random)
        counts = np.zeros((self.num_clients, len(pools)), dtype=np.int64)
        left = np.array([len(pool) for pool in pools], dtype=np.int64)
        for client in random.permutation(self.num_clients):
            counts[client] = _draw_in_groups(left, sizes[client], coarse[client], fine[client], group, random)
            left -= counts[client]
        return _sorted(_take(pools, counts, random))


@dataclass(frozen=True, kw_only=True)
class Pathological(Partition):
    """A fixed number of classes per client; each class is divided evenly among the clients that have it."""

    num_clients: int
    classes_per_client: int = 2

    def __post_init__(self) -> None:
        count("num_clients", self.num_clients)
        count("classes_per_client", self.classes_per_client)

    def assign(self, labels: Labels, seed: int) -> list[Ints]:
        check_enough(len(labels), self.num_clients)
        random = generator(seed, "partition")
        pools = [random.permutation(pool) for pool in _by_class(_whole_numbers(labels))]
        num_classes, each = len(pools), self.classes_per_client
        if each > num_classes:
            raise ValueError(f"classes_per_client is {each}, but the data has only {num_classes} classes")
        if self.num_clients * each < num_classes:
            raise ValueError(
                f"{self.num_clients} clients of {each} classes cannot hold all {num_classes} classes: "
                "take more clients or more classes per client"
            )
        holders: list[list[int]] = [[] for _ in pools]
        for client, classes in enumerate(_deal_classes(self.num_clients, each, num_classes, random)):
            for label in classes:
                holders[label].append(client)
        parts: list[list[Ints]] = [[] for _ in range(self.num_clients)]
        for pool, clients in zip(pools, holders, strict=True):
            for client, part in zip(clients, np.array_split(pool, len(clients)), strict=True):
                parts[client].append(part)
        return _sorted([np.concatenate(own) for own in parts])


@dataclass(frozen=True, kw_only=True, eq=False)
class ByKey(Partition):
    """One client for each distinct key, such as the user or the device that a sample came from."""

    keys: Sequence[Any]
    names: Sequence[str] = ()
    """The names of the clients, in the order of the keys; by default the keys themselves."""

    needs_labels = False

    def assign(self, labels: Labels, seed: int) -> list[Ints]:
        if len(self.keys) != len(labels):
            raise ValueError(f"there are {len(self.keys)} keys for {len(labels)} samples: one key per sample is needed")
        _check_keys(self.keys)
        try:
            clients = _by_class(np.asarray(self.keys))
        except TypeError:  # they cannot be sorted
            raise ValueError("the keys are of several types: make all of them texts, list(map(str, keys))") from None
        if self.names and len(self.names) != len(clients):
            raise ValueError(
                f"there are {len(self.names)} names for {len(clients)} clients: one for each distinct key is needed"
            )
        return clients

    def client_names(self) -> tuple[str, ...]:
        return tuple(self.names) or tuple(map(str, np.unique(np.asarray(self.keys)).tolist()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Given(Partition):
    """Given sample indices: one collection per client, or a mapping from client names to them."""

    indices: Iterable[Iterable[int]] | Mapping[Any, Iterable[int]]

    needs_labels = False

    def assign(self, labels: Labels, seed: int) -> list[Ints]:
        given = self.indices.values() if isinstance(self.indices, Mapping) else self.indices
        clients = [_sample_numbers(own, client) for client, own in enumerate(given)]
        for client, own in enumerate(clients):
            if len(own) and (own.min() < 0 or own.max() >= len(labels)):
                raise ValueError(f"client {client} has sample indices outside 0..{len(labels) - 1}")
        if not clients:
            raise ValueError("there are no clients: the given partition is empty")
        return _sorted(clients)

    def client_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.indices)) if isinstance(self.indices, Mapping) else ()


def _check_keys(keys: Sequence[Any]) -> None:
    for sample, key in enumerate(keys if np.asarray(keys).dtype.kind not in "biu" else ()):
        is_nan = isinstance(key, (float, np.floating, np.datetime64)) and key != key
        if key is None or is_nan or type(key).__name__ in ("NAType", "NaTType"):
            raise ValueError(f"the key of sample {sample} is missing ({key}): give it one, or leave the sample out")


def _sample_numbers(own: Iterable[int], client: int) -> Ints:
    if isinstance(own, (str, Real)) or getattr(own, "ndim", 1) == 0:
        raise ValueError(
            f"client {client} must be given by sample indices, got {own}: one client number or name for each sample is "
            "given as fedlada.data.ByKey(keys=...)"
        )
    numbers = np.asarray(own if isinstance(own, (np.ndarray, list, tuple, range)) else list(own)).reshape(-1)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ValueError(f"client {client} must be given by sample indices, got values of type {numbers.dtype}")
    return numbers.astype(np.int64)


def _sorted(clients: Sequence[Ints]) -> list[Ints]:
    return [np.sort(own).astype(np.int64, copy=False) for own in clients]


def _whole_numbers(labels: Labels) -> Labels:
    if labels.dtype.kind == "f":
        raise ValueError(
            "a partition by class needs class labels, got floating-point targets: use IID or ByKey "
            "(--partition iid or natural)"
        )
    return labels


def _by_class(labels: Labels) -> list[Ints]:
    """The sample indices of each class, classes in sorted order."""
    if labels.ndim != 1:
        raise ValueError(f"a partition by class needs one label per sample, got labels of shape {labels.shape}")
    _, inverse = np.unique(labels, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts: list[Ints] = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    return parts


def _class_mixes(
    num_clients: int, num_classes: int, concentration: float, random: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.float64]]:
    mixes = random.dirichlet(np.full(num_classes, concentration), size=num_clients)
    # At extreme concentrations a draw can underflow to all zeros: its limit is a single class.
    broken = ~(np.isfinite(mixes).all(axis=1) & (np.abs(mixes.sum(axis=1) - 1) < 1e-6))
    mixes[broken] = np.eye(num_classes)[random.integers(num_classes, size=int(broken.sum()))]
    return np.asarray(mixes / mixes.sum(axis=1, keepdims=True))


def _draw_within(
    left: Ints, size: int, mix: np.ndarray[Any, np.dtype[np.float64]], random: np.random.Generator
) -> Ints:
    """Class counts that follow the mix while classes last; each pass exhausts a class or is the last."""
    counts = np.zeros_like(left)
    while missing := size - int(counts.sum()):
        weights = np.where(counts < left, mix, 0.0)
        if weights.sum() < 1e-12:
            weights = (left - counts).astype(np.float64)
        counts = np.minimum(counts + random.multinomial(missing, weights / weights.sum()), left)
    return counts


def _draw_in_groups(
    left: Ints,
    size: int,
    coarse: np.ndarray[Any, np.dtype[np.float64]],
    fine: np.ndarray[Any, np.dtype[np.float64]],
    group: Ints,
    random: np.random.Generator,
) -> Ints:
    """Class counts that follow both mixes while classes last."""
    counts = np.zeros_like(left)
    while missing := size - int(counts.sum()):
        # Within a group the remaining classes share its weight; a tiny weight keeps a group from vanishing.
        inside = np.where(counts < left, fine + 1e-12, 0.0)
        of_group = np.bincount(group, weights=inside, minlength=len(coarse))[group]
        weights = np.where(inside > 0, (coarse[group] + 1e-12) * inside / np.where(of_group > 0, of_group, 1.0), 0.0)
        counts = np.minimum(counts + random.multinomial(missing, weights / weights.sum()), left)
    return counts


def _take(pools: list[Ints], counts: Ints, random: np.random.Generator) -> list[Ints]:
    """Distribute each class's pool to the clients by the counts; an exhausted pool is reshuffled and starts again."""
    dealt, owners = [], []
    for label, pool in enumerate(pools):
        needed = int(counts[:, label].sum())
        supply = [pool]
        while sum(len(part) for part in supply) < needed:
            supply.append(random.permutation(pool))
        dealt.append(np.concatenate(supply)[:needed])
        owners.append(np.repeat(np.arange(len(counts)), counts[:, label]))
    # One array by owner: an array for each client and class would be a million objects for 100,000 clients.
    order = np.argsort(np.concatenate(owners), kind="stable")
    parts: list[Ints] = np.split(np.concatenate(dealt)[order], np.cumsum(counts.sum(axis=1))[:-1])
    return parts


def _deal_classes(num_clients: int, each: int, num_classes: int, random: np.random.Generator) -> list[list[int]]:
    """Distinct classes for each client, every class used equally often (to within one)."""
    hands: list[list[int]] = []
    deck: list[int] = []
    for _ in range(num_clients):
        hand, deck = deck[:each], deck[each:]
        if len(hand) < each:
            fresh = [int(label) for label in random.permutation(num_classes)]
            # Classes that this client already has go to the end of the new permutation.
            fresh.sort(key=lambda label: label in hand)
            needed = each - len(hand)
            hand, deck = hand + fresh[:needed], fresh[needed:]
        hands.append(hand)
    return hands
