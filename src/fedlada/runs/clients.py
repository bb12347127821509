"""`clients.json`: names of clients and classes, and the class counts of each client."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlada.data.samples import ArraySamples
from fedlada.federation.plan import Plan
from fedlada.runs.client_metrics import read_values
from fedlada.runs.files import read_object, write_json

if TYPE_CHECKING:
    from fedlada.training.simulation import Simulation

FILE = "clients.json"
LARGEST = 200_000
"""Most entries (clients times classes) that are stored."""


@dataclass(frozen=True)
class Names:
    """The names of clients and classes 0, 1, ..., if they have any."""

    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def client(self, number: int) -> str:
        """A client's name, or its index."""
        return self.clients[number] if number < len(self.clients) else str(number)

    def label(self, number: int) -> str:
        """A class's name, or its index."""
        return self.classes[number] if number < len(self.classes) else str(number)


def write_clients(folder: Path, simulation: Simulation) -> None:
    """Store the names, and the counts if labels are classes, few, and in memory."""
    if simulation.privacy is not None or (folder / FILE).exists():  # nothing about private clients is stored
        return
    history, counts = simulation.history, count_labels(simulation)
    names = {"client_names": history.client_names, "class_names": history.class_names}
    counted = {} if counts is None else {"labels_per_client": counts, "labels": _digest(simulation)}
    if stored := {**counted, **{name: list(values) for name, values in names.items() if values}}:
        write_json(folder / FILE, {"format": 1, **stored})


def read_names(folder: Path) -> Names:
    """The names stored with a run."""
    stored = _read(folder)
    found = (stored.get(name) for name in ("client_names", "class_names"))
    return Names(*(tuple(map(str, one)) if isinstance(one, list) else () for one in found))


def refuse_other_data(folder: Path, simulation: Simulation) -> None:
    """Refuse other data before anything is written: a configuration has a file's name, not its content."""
    stored = _read(folder).get("labels")
    if stored is not None and count_labels(simulation) is not None and stored != _digest(simulation):
        raise ValueError(f"{folder} was trained on data with different labels: choose another folder")


def read_clients(folder: Path) -> list[list[int]] | None:
    """counts[client][class]; None if unknown."""
    try:
        table = np.asarray(_read(folder)["labels_per_client"])
    except (ValueError, KeyError, TypeError):
        return None
    is_table = table.ndim == 2 and table.dtype.kind == "i" and table.size > 0 and bool((table >= 0).all())
    return table.tolist() if is_table else None


def stored_num_clients(folder: Path, config: Mapping[str, Any]) -> int | None:
    """The number of a stored run's clients, from whichever file has it; None if unknown."""
    if names := read_names(folder).clients:
        return len(names)
    if counts := read_clients(folder):
        return len(counts)
    tested = [len(one) for line in read_values(folder)[-1:] for one in line.values() if isinstance(one, list)]
    known = tested[0] if tested else config.get("num_clients")
    return known if isinstance(known, int) else None


def _read(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / FILE, FILE, "")
    except ValueError:
        return {}


def _digest(simulation: Simulation) -> str:
    assert simulation.train is not None
    return hashlib.sha256(simulation.train.labels().astype(np.int64).tobytes()).hexdigest()


def count_labels(simulation: Simulation) -> list[list[int]] | None:
    """counts[client][class] of a simulation's training data."""
    if not isinstance(simulation.train, ArraySamples) or not isinstance(simulation.plan, Plan):
        return None  # a torch dataset would have to be read completely, and real nodes keep their data
    labels = simulation.train.labels()
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0:
        return None
    num_classes = int(labels.max()) + 1
    if num_classes * simulation.plan.num_clients > LARGEST:
        return None
    return [np.bincount(labels[own], minlength=num_classes).tolist() for own in simulation.plan.clients]
