"""The fields of an experiment's `config.json`, and those that its run folder adds to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedlada.data.source import Source
from fedlada.engines.engine import RAN_BY
from fedlada.methods.validation import nearest
from fedlada.runs.config import EVALUATED_ON, TRAINED_ON, parts_digests
from fedlada.runs.parts import PARTS
from fedlada.training.simulation import Simulation

CONFIG_FORMAT = 1
"""Format version, incremented when older versions can no longer read a configuration."""
IDENTIFYING = (PARTS, TRAINED_ON, EVALUATED_ON)
"""Fields that a folder adds because the names in a configuration do not identify a user's code and data."""


def experiment_fields(stored: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The stored fields of the experiment itself; refuses those of a newer version, and unknown ones."""
    found = {name: value for name, value in stored.items() if name not in (RAN_BY, *IDENTIFYING)}
    version, written = found.pop("fedlada", "?"), found.pop("format", CONFIG_FORMAT)
    if not isinstance(written, int) or written > CONFIG_FORMAT:
        raise ValueError(f"the configuration was written by fedlada {version}, newer than this one: upgrade")
    if unknown := sorted(set(found) - set(known)):
        raise ValueError(f"the configuration has an unknown field {unknown[0]!r}{nearest(unknown[0], known)}")
    return found


def identifying_fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored fields that a folder added."""
    return {name: value for name, value in stored.items() if name in IDENTIFYING}


def data_digests(source: Source, evaluated: Collection[str]) -> dict[str, Any]:
    """Digests of the training data, and of those of "test" and "validation" that are evaluated."""
    tested = {name: source.digest(name) for name in evaluated}
    return {TRAINED_ON: {"data": source.digest("train")}, **({EVALUATED_ON: tested} if tested else {})}


def run_digests(source: Source, evaluated: Collection[str], simulation: Simulation) -> dict[str, Any]:
    """The digests of the data, with those that only a simulation has."""
    digests = data_digests(source, evaluated)
    digests[TRAINED_ON] |= parts_digests(simulation)
    return digests
