"""Flags made from the dataclass and the recipes, so that a new method's hyper-parameters appear without work."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import click

from fedlada.methods.recipes import HYPER_PARAMETERS, RECIPES, hyper_parameters
from fedlada.methods.validation import nearest
from fedlada.models.factory import model_factory, trusted_factory
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.presets import SETTINGS

Command = Callable[..., Any]
OFF = "none"
model_flag = click.option("--model", help="The run's model again: needed where it is not built in.")
trust_flag = click.option(
    "--trust",
    is_flag=True,
    help="Import the model that the stored configuration names, which runs its author's code.",
)


class NearestChoice(click.Choice[str]):
    """Answers a wrong value with the nearest right one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """One of the choices, or one sentence."""
        if str(value).lower() in self.choices:  # FedLADA is fedlada
            return str(value).lower()
        if value not in self.choices:
            self.fail(f"{value!r} is not known{nearest(str(value), list(self.choices))}", param, ctx)
        return str(value)


class NumberOrNone(click.ParamType[float | str]):
    """A number, or "none" to switch off."""

    name = "number|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """The number, or the word."""
        if value == OFF:
            return OFF
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {OFF!r}", param, ctx)


class Words(click.ParamType[list[Any]]):
    """Values separated by commas, each given once."""

    name = "list"

    def __init__(self, kind: Callable[[str], Any] = str, choices: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.choices = choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """The values in their order."""
        if isinstance(value, list):
            return value
        words = [word.strip() for word in value.split(",") if word.strip()]
        for word in words:
            if self.choices and word not in self.choices:
                self.fail(f"{word!r} is not known{nearest(word, list(self.choices))}", param, ctx)
        try:
            values = [self.kind(word) for word in words]
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers separated by commas", param, ctx)
        if not values or len(set(values)) < len(values):
            self.fail("the list is empty" if not values else f"{value!r} names something twice", param, ctx)
        return values


def experiment_flags(
    *, without: tuple[str, ...] = (), only: tuple[str, ...] | None = None
) -> Callable[[Command], Command]:
    """The flags of an experiment and of every method. A flag that is not given is None and changes nothing."""
    options = {one.name: _field_option(one) for one in _flag_fields()}
    options |= {name: _hyper_option(name, default) for name, default in all_hyper_parameters().items()}
    options["config"] = click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Start from this stored configuration; a model that is not built in needs --model or --trust.",
    )
    options["trust"] = trust_flag

    def decorate(command: Command) -> Command:
        for name in reversed(options):
            if name not in without and (only is None or name in only):
                command = options[name](command)
        return command

    return decorate


def build_experiment(given: dict[str, Any], **fixed: Any) -> Experiment:
    """The experiment of a stored configuration, if any, with the given flags on top."""
    given = {name: value for name, value in {**given, **fixed}.items() if value is not None}
    config, trust = given.pop("config", None), given.pop("trust", False)
    hyper_names = set(all_hyper_parameters())
    hyper = {name: None if value == OFF else value for name, value in given.items() if name in hyper_names}
    changes = {name: value for name, value in given.items() if name not in hyper_names}
    if {"local_epochs", "local_steps"} <= changes.keys():
        raise ValueError("give local_epochs or local_steps, not both")
    if config is None:
        if "model" in changes:  # what cannot be imported is one sentence before anything is read or written
            model_factory(changes["model"])
        return Experiment(**changes, hyper=hyper)
    stored = Experiment.read(config)
    same_data = changes.get("dataset", stored.dataset) == stored.dataset
    if same_data and changes.get("method", stored.method) == stored.method:
        hyper = {**stored.hyper, **hyper}
    else:  # what was chosen for one method or data set does not suit another
        changes = {"lr": None, "lr_decay": None, **changes}
    if not same_data:
        changes = {**dict.fromkeys((*SETTINGS[stored.dataset], "data_dir", "image_size")), **changes}
    if "local_epochs" in given:
        changes["local_steps"] = None
    experiment = replace(stored, **changes, hyper=hyper)
    if experiment.model is not None:
        trusted_factory(experiment.model, config, named=changes.get("model"), trust=trust)
    return experiment


def flags_of(method: str, methods: list[str], flags: dict[str, Any]) -> dict[str, Any]:
    """The flags for one method; a hyper-parameter that none of the methods has is refused."""
    hyper = {name for name in all_hyper_parameters() if flags.get(name) is not None}
    nobody = sorted(name for name in hyper if not any(name in hyper_parameters(one) for one in methods))
    if nobody:
        raise ValueError(f"none of {', '.join(methods)} has the hyper-parameter {nobody[0]!r}")
    return {name: value for name, value in flags.items() if name not in hyper or name in hyper_parameters(method)}


def value_type(name: str) -> click.ParamType[Any]:
    """The type of a flag's value: any field of an experiment, any hyper-parameter."""
    found = {one.name: one for one in _flag_fields()}
    if name in found:
        option = _field_option(found[name])
    elif name in all_hyper_parameters():
        option = _hyper_option(name, all_hyper_parameters()[name])
    else:
        raise ValueError(
            f"there is no field or hyper-parameter {name!r}{nearest(name, [*found, *all_hyper_parameters()])}"
        )
    return click.command()(option(lambda: None)).params[0].type


def all_hyper_parameters() -> dict[str, Any]:
    """Every hyper-parameter of any method, with the first default met."""
    found: dict[str, Any] = {}
    for method in RECIPES:
        found = {**hyper_parameters(method), **found}
    return found


def _flag_fields() -> list[Field[Any]]:
    """The fields that are flags: those of an experiment, then those of the records that it extends."""
    flags = [one for one in fields(Experiment) if "help" in one.metadata]
    return sorted(flags, key=lambda one: one.name not in Experiment.__annotations__)


def _field_option(one: Field[Any]) -> Callable[[Command], Command]:
    kind = typing.get_type_hints(Experiment)[one.name]
    if isinstance(kind, types.UnionType):  # `float | None`
        kind = typing.get_args(kind)[0]
    help = one.metadata["help"]
    if one.default not in (None, False):
        help += f"  [default: {one.default}]"
    choices = one.metadata["choices"]
    return _option(one.name, NearestChoice(choices) if choices else kind, help)


def _hyper_option(name: str, default: Any) -> Callable[[Command], Command]:
    users = [method for method in RECIPES if name in hyper_parameters(method)]
    help = f"{HYPER_PARAMETERS[name]}  [{'all methods' if len(users) == len(RECIPES) else ', '.join(users)}]"
    return _option(name, NumberOrNone() if default is None else type(default), help)


def _option(name: str, kind: Any, help: str) -> Callable[[Command], Command]:
    flag = name.replace("_", "-")
    if kind is bool:
        return click.option(f"--{flag}/--no-{flag}", default=None, help=help)
    return click.option(f"--{flag}", type=kind, default=None, help=help)
