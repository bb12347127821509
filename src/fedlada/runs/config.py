"""A run's `config.json`, and the difference between two of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedlada.engines.engine import RAN_BY
from fedlada.engines.evaluation import AS_USUAL
from fedlada.federation.plan import Plan
from fedlada.federation.randomness import Ints
from fedlada.federation.weights import describe_weights
from fedlada.models.flat import untrained_digest
from fedlada.runs.files import read_object
from fedlada.runs.parts import describe_method, describe_part, describe_value, words_of
from fedlada.training.simulation import Simulation

EVALUATED_ON = "evaluated_on"
"""Digests of the test and validation data, which `refuse_other_test` compares."""
TRAINED_ON = "trained_on"
"""Of an experiment, digests of its training data, of its clients' samples, and of a model's frozen parts, if any."""
FREE_TO_CHANGE = {
    "rounds",
    "fedlada",
    "format",
    "target",
    "best",
    "stop_at_target",
    "patience",
    "device",
    "data_dir",
    "checkpoint_every",
    "checkpoint_minutes",
    "keep",
    "tensorboard",
    "replies",
    "examples",
    "name",
    EVALUATED_ON,
    RAN_BY,
}
"""Settings that may differ on resume: length, device, storage, nodes' samples. None changes earlier rounds."""
LATER = {
    "combiner": "Mean()",
    "messages": "float32",
    "answer": "delta",
    "size_bound": 10.0,
    "eval_clients_every": None,
    "eval_batch_size": AS_USUAL.eval_batch_size,
}
"""Fields that earlier versions did not store, with the value of their runs."""
REASONS = {
    "eval_batch_size": "the last bits of the metrics depend on it",
    "threads": "the last bits of the weights depend on it",
}
"""The reason why a field that does not affect the method must not change."""
TELLING = ("method", "dataset", "seed")
"""Fields whose difference is named first: another method has other hyperparameters, another seed other clients."""
DIGESTS = {
    "data": "the training data differ",
    "clients": "the partition differs: its clients hold different samples",
    "not_trained": "the frozen parameters or buffers differ",
}
"""Fields that are digests, with the meaning of a difference. They are named last: another setting is the cause."""


def is_experiment(config: Mapping[str, Any]) -> bool:
    """Whether this is the configuration of an `Experiment`, from which a run can be reproduced.

    The configuration of a simulation made from Python only identifies it.
    """
    return "dataset" in config


def is_federation(config: Mapping[str, Any]) -> bool:
    """Whether this is the configuration of a run on real nodes."""
    return config.get("engine") == "flower" and not is_experiment(config)


def how_made(config: Mapping[str, Any]) -> str:
    """The origin of a run that is not an experiment, to follow "was" in a message."""
    return "made by a federation" if is_federation(config) else "made from Python"


def refuse_other_than_experiment(folder: Path) -> None:
    """Refuse to resume a run of `simulate` or of a real federation as an experiment."""
    if (folder / "config.json").is_file() and not is_experiment(config := read_config(folder)):
        raise ValueError(f"{folder} was {how_made(config)}: choose another folder")


def read_config(folder: Path) -> dict[str, Any]:
    """A run's `config.json`."""
    path = folder / "config.json"
    return read_object(path, str(path), f"{folder} is not a run's folder: it has no config.json")


def completed(stored: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """A stored configuration with the fields of later versions; threads and digests come from `config`."""
    later = {**LATER, "threads": config.get("threads"), TRAINED_ON: config.get(TRAINED_ON)}
    return {**{name: value for name, value in later.items() if name in config}, **stored}


def first_difference(stored: dict[str, Any], config: dict[str, Any]) -> str:
    """The first difference between two configurations as text; empty if there is none."""
    for name in sorted(set(stored) | set(config), key=lambda name: (_place(name), name)):
        there, here = stored.get(name), config.get(name)
        if there == here or name in FREE_TO_CHANGE:
            continue
        if isinstance(there, dict) and isinstance(here, dict):
            if inner := first_difference(there, here):
                return inner
            continue
        if name in DIGESTS:
            return DIGESTS[name]
        said = [repr(one[name]) if name in one else "at its default" for one in (stored, config)]
        reason = f", and {REASONS[name]}" if name in REASONS else ""
        return f"{name} is {said[0]} there and {said[1]} here{reason}"
    return ""


def _place(name: str) -> int:
    """The place of a field among those that may be named as the difference."""
    if name in TELLING:
        return TELLING.index(name)
    last = [TRAINED_ON, *DIGESTS]
    return len(TELLING) + (1 + last.index(name) if name in last else 0)


def refuse_another(folder: Path, stored: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse a folder that holds another run, according to its `stored` configuration."""
    combiners = [str(one.get("combiner")) for one in (stored, config)]
    noise = [re.search(r"noise_multiplier=([\d.e+-]+)", one) for one in combiners]
    if noise[0] and noise[1] and combiners[1] != combiners[0] == combiners[1].replace(noise[1][0], noise[0][0]):
        raise ValueError(
            f"{folder} has {noise[0][0]}, and this epsilon needs {noise[1][0]} for this many rounds: add {noise[0][0]} "
            "to Private, which continues until epsilon is spent, or start a new run in another folder"
        )
    if difference := first_difference(stored, config):
        can_resume = is_experiment(stored) and difference not in DIGESTS.values()
        way_out = "choose another folder" + (", or continue that run with `fedlada resume`" if can_resume else "")
        raise ValueError(f"{folder} holds another run ({difference}): {way_out}")


def refuse_other_test(folder: Path, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse other test or validation data: the history would mix both. Folders may have been stored without."""
    there, here = (one.get(EVALUATED_ON) or {} for one in (stored, config))
    for name in here:
        if name in there and there[name] != here[name]:
            raise ValueError(f"the {name} data differ from those of {folder}: give the same, or choose another folder")


def describe(simulation: Simulation) -> dict[str, Any]:
    """The identity of a simulation made from Python: enough to refuse a folder that holds another one.

    The initial weights are not part of it: a run resumes from its checkpoint, whatever model is given.
    """
    plan, engine = simulation.plan, simulation.engine
    assert isinstance(plan, Plan), "another kind of plan comes with a configuration of its own"
    return {
        **({"name": simulation.name} if simulation.name else {}),
        **({} if simulation.best is None else {"best": simulation.best}),
        **describe_method(engine.method),
        "num_params": simulation.server.params.numel(),
        "loss": describe_loss(engine.loss),
        "data": engine.data_digest(),
        **parts_digests(simulation),
        "seed": plan.seed,
        "cohorts": words_of(plan.cohorts),
        "work": repr(plan.work),
        "schedule": describe_schedule(plan.schedule),
        "weights": describe_weights(plan.weights),
        "unreliable": words_of(plan.unreliable),
        "eval_every": simulation.evaluation.eval_every,
        "eval_batch_size": simulation.evaluation.eval_batch_size,
        "threads": simulation.threads,
        **({EVALUATED_ON: digests} if (digests := simulation.measures.digests()) else {}),
        **_describe_client_tests(simulation),
        **({} if simulation.attack is None else {"attack": describe_part(simulation.attack)}),
        **({} if (text := simulation.exchange.messages.text) == "float32" else {"messages": text}),
    }


def parts_digests(simulation: Simulation) -> dict[str, str]:
    """Digests of the clients' samples, and of frozen parameters and buffers, if any: no checkpoint holds them."""
    assert isinstance(simulation.plan, Plan), "another kind of plan has no samples"
    untrained = untrained_digest(simulation.engine.template)
    frozen = {} if untrained == hashlib.sha256().hexdigest() else {"not_trained": untrained}
    return {"clients": clients_digest(simulation.plan.clients), **frozen}


def clients_digest(clients: Sequence[Ints]) -> str:
    """A digest of the sample indices of all clients."""
    digest = hashlib.sha256()
    for own in clients:  # one by one: together they may be as large as all indices
        digest.update(len(own).to_bytes(8, "little") + own.tobytes())
    return digest.hexdigest()


def _describe_client_tests(simulation: Simulation) -> dict[str, Any]:
    """The per-client tests, if any: samples and fine-tuning steps."""
    if simulation.measures.each_client is None:
        return {}
    options, test = simulation.evaluation, simulation.measures.each_client.test
    described = {"client_test": options.client_test or test.digest(), "personal_steps": options.personal_steps}
    return {**described, "personal_every": options.personal_every}


def describe_loss(loss: Any) -> str:
    """The loss by its name; torch's own losses also by the attributes that differ from their defaults."""
    name = str(getattr(loss, "__qualname__", type(loss).__qualname__))
    if not isinstance(loss, nn.modules.loss._Loss) or not type(loss).__module__.startswith("torch."):
        return name
    usual, held = (
        {key: describe_value(value) for key, value in (*vars(one).items(), *one.state_dict().items()) if key[0] != "_"}
        for one in (type(loss)(), loss)
    )
    own = [f"{key}={words}" for key, words in sorted(held.items()) if key != "training" and usual.get(key) != words]
    return f"{name}({', '.join(own)})" if own else name


def describe_schedule(schedule: Any) -> str | float:
    """A schedule by its values; a plain function, also inside another schedule, by its rate in round 1."""
    if not is_dataclass(schedule):
        return float(schedule(1))
    values = {one.name: getattr(schedule, one.name) for one in fields(schedule)}
    words = {
        name: describe_schedule(value) if callable(value) else describe_value(value) for name, value in values.items()
    }
    return f"{type(schedule).__qualname__}({', '.join(f'{name}={word}' for name, word in words.items())})"
