"""The identity of a run: every setting that affects its bits, the data and the kind of device."""

from __future__ import annotations

import hashlib
import json
import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from fedlada.data.images import Images
from fedlada.data.own import fingerprints
from fedlada.data.source import Source
from fedlada.data.sources import CONTENT_BY_NAME
from fedlada.engines.stacked.engine import WORTH_COMPILING, WORTH_COMPILING_GRADIENTS
from fedlada.methods.factory import is_own
from fedlada.models import MODELS, TEXT_MODELS
from fedlada.runs.config import FREE_TO_CHANGE
from fedlada.runs.parts import PARTS, describe_method
from fedlada.training.resolve import resolve_device, resolve_work
from fedlada.workbench.experiment import Experiment

DECIDES_NOTHING = FREE_TO_CHANGE - {"fedlada", "device", "replies"}
"""How far a run goes, where its data lie and how it is stored change none of its rounds; version and device may."""
ADDED_LATER = {"standardize": "channels"}
"""Settings that older runs did not have, at what they then were: those runs keep their names."""
MEASURES = 2
"""Raised when a measurement gets another meaning, as `full_train_*` did when they became those of what clients hold.

The training stays the same then, and often the version too, but a run measured in the old way must not be shown as, or
go on as, one that is measured in the new way.
"""


class DataFacts(NamedTuple):
    """The facts about a data set once it has been read."""

    digest: str
    source: Source


def whole_length(experiment: Experiment) -> int:
    """The rounds of a run, rounded up to one in which everything is evaluated anyway.

    A simulation evaluates its last round out of turn; a longer run would not have done so there.
    """
    step = math.lcm(experiment.eval_every, experiment.eval_train_every or 1, experiment.personal_every or 1)
    return step * math.ceil(experiment.rounds / step)


def digest(experiment: Experiment, parts: Any = None) -> str:
    """The name of a run: the same for the same settings, version, data and kind of device, and for no other.

    The parts of a user's own method are those that a folder has stored; without them it is imported.
    """
    return _digest(json.dumps(experiment.to_json(), sort_keys=True), None if parts is None else json.dumps(parts))


@lru_cache(maxsize=100_000)  # cached: it is needed often, and on a GPU it depends on the partition
def _digest(config: str, parts: str | None = None) -> str:
    experiment = Experiment.from_json(json.loads(config))
    settings: dict[str, Any] = {
        name: value
        for name, value in experiment.to_json().items()
        if name not in DECIDES_NOTHING and (name, value) not in ADDED_LATER.items()
    }
    facts = data_facts(experiment)
    settings |= {"device": device_kind(experiment.device), "data": facts.digest, "measures": MEASURES}
    if is_own(experiment.method):  # its name does not identify its parts
        settings[PARTS] = describe_method(experiment.build_method()) if parts is None else json.loads(parts)
    if settings["device"] == "cuda":
        # On a GPU short runs use other kernels than long ones, and so have other last bits.
        steps = whole_length(experiment) * _most_steps(experiment, facts.source)
        settings["is_long"] = steps >= WORTH_COMPILING
        if experiment.engine != "sequential" and not _is_layered(experiment) and steps >= WORTH_COMPILING_GRADIENTS:
            settings["compiles_gradients"] = True
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:20]


def device_kind(device: str) -> str:
    """The kind of a device, which need not exist here: runs of a GPU can be shown without one."""
    if device == "auto":
        return resolve_device(device).type
    try:
        return torch.device(device).type
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from None


def data_facts(experiment: Experiment) -> DataFacts:
    """The data of an experiment, read once in a process."""
    return _read(experiment.dataset, experiment.data_dir, experiment.image_size, experiment.validation)


def unnamed_data(experiment: Experiment) -> str | None:
    """The digest of a user's data; None for a published data set, which its name identifies."""
    return None if experiment.dataset in CONTENT_BY_NAME else data_facts(experiment).digest


@lru_cache(maxsize=8)
def _read(dataset: str, data_dir: str | None, image_size: int | None, validation: float) -> DataFacts:
    plain = Experiment(dataset=dataset, data_dir=data_dir, image_size=image_size, validation=validation, augment="none")
    source = plain.load_data()
    hashed = hashlib.sha256()
    parts = [source.train, source.test, source.validation]
    arrays = [array for part in parts if part is not None for array in _arrays(part)]
    own = [] if source.partition is None else source.partition.assign(source.labels("train"), 0)
    for array in [*arrays, *([] if source.client is None else [source.client]), *own]:
        hashed.update(f"{array.dtype} {array.shape} ".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return DataFacts(hashed.hexdigest(), source)


def _arrays(data: Any) -> list[np.ndarray[Any, Any]]:
    if not isinstance(data, (Images, tuple)):
        return fingerprints(data)
    pair = (data.x, data.y) if isinstance(data, Images) else data
    return [np.asarray(one) for one in pair]


def _is_layered(experiment: Experiment) -> bool:
    """Whether the model is one that is known to be stacked layer by layer."""
    model = experiment.resolved().model
    return model in MODELS and model not in TEXT_MODELS


def _most_steps(experiment: Experiment, source: Source) -> int:
    """The most local steps that any client takes in a round, as the engine counts them."""
    full = experiment.resolved()
    assert full.batch_size is not None
    work = resolve_work(full.batch_size, None if full.local_steps else full.local_epochs, full.local_steps)
    clients = experiment.build_partition(source).assign(source.labels("train"), experiment.seed)
    return max(work.num_steps(len(own)) for own in clients)
