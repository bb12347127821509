"""Flags made from the dataclass and the recipes, so that a new method's hyperparameters become flags automatically."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import Field, fields, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import click

from fedlada.data.own import named_data_function, refuse_untrusted_data
from fedlada.methods.factory import check_hyper, hyper_parameters, is_own, method_factory, refuse_untrusted
from fedlada.methods.recipes import HYPER_PARAMETERS, RECIPES
from fedlada.methods.validation import nearest
from fedlada.models.factory import model_factory, trusted_factory
from fedlada.training.suggested import ADAPTIVE, SGD_BASED, runs_amsgrad
from fedlada.workbench.cli.headings import write_sections
from fedlada.workbench.cli.values import OFF, MethodName, NearestChoice, NumberOrNone, TargetValue, UserPath
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.presets import SETTINGS, settings_of

Command = Callable[..., Any]
model_flag = click.option("--model", help="The run's model; needed if it is not built in.")
trust_flag = click.option(
    "--trust",
    is_flag=True,
    help="Import the model, the method and the data named in the stored configuration, which runs their author's code.",
)
data_flag = click.option("--data", help="The run's data; needed if they are your own function's.")
method_flag = click.option("--method", help="The run's method; needed if it is your own.")


def experiment_flags(
    *, without: tuple[str, ...] = (), only: tuple[str, ...] | None = None
) -> Callable[[Command], Command]:
    """The flags of an experiment and of every method. A flag that is not given is None and changes nothing."""
    options = {one.name: _field_option(one) for one in _flag_fields()}
    options |= {name: _hyper_option(name, default) for name, default in ours_hyper_parameters().items()}
    options["config"] = click.option(
        "--config",
        type=UserPath(),
        help="Start from this stored configuration; a custom model needs --model or --trust.",
    )
    options["data"] = click.option(
        "--data", help="Your own data instead of --dataset: package.module:function, which returns (train, test)."
    )
    options["trust"] = trust_flag

    def decorate(command: Command) -> Command:
        for name in reversed(options):
            if name not in without and (only is None or name in only):
                command = options[name](command)
        return command

    return decorate


OWN = "fedlada: methods of one's own"


class MethodCommand(click.Command):
    """A command whose flags include the hyperparameters of the user's own methods that it names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the methods first: only what the user names is imported."""
        if not ctx.resilient_parsing:  # shell completion must not run the user's code
            ctx.meta[OWN] = {name: _own_hyper_parameters(name) for name in own_methods_in(args)}
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The flags, with those of the methods."""
        params = super().get_params(ctx)
        taken = {one.name for one in params}
        return [*params, *(_own_option(name) for name in _of_named_methods() if name not in taken)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The flags under their headings."""
        write_sections(self.get_params(ctx), ctx, formatter, all_hyper_parameters())


def own_methods_in(words: list[str]) -> list[str]:
    """The user's own methods that a command line names."""
    pairs = [word.split("=", 1) if word.startswith("--") and "=" in word else [word] for word in words]
    flat = [part for pair in pairs for part in pair]
    found = []
    for flag, value in pairwise(flat):
        if flag == "--set" and value.startswith("method="):
            found += value.removeprefix("method=").split(",")
        elif flag in ("--method", "--methods"):
            found += value.split(",")
    return list(dict.fromkeys(name.strip() for name in found if is_own(name)))


def _own_hyper_parameters(method: str) -> dict[str, Any]:
    """The hyperparameters of a user's method; refuses names of flags that every method has."""
    found = hyper_parameters(method)
    for name in found:
        if name in {one.name for one in fields(Experiment)}:
            raise ValueError(f"the method {method!r} cannot have the argument {name!r}, a flag of every run: rename it")
    return found


def _of_named_methods() -> dict[str, Any]:
    """The hyperparameters of the user's methods that this command names, with the first default met."""
    context = click.get_current_context(silent=True)
    own = {} if context is None else context.meta.get(OWN, {})
    return {name: default for values in reversed(list(own.values())) for name, default in values.items()}


def _own_option(name: str) -> click.Parameter:
    default = _of_named_methods()[name]
    kind = NumberOrNone() if default is None else type(default)
    return _parameter(
        _option(name, kind, f"Hyperparameter of your own method.  [default: {OFF if default is None else default}]")
    )


def _parameter(option: Callable[[Command], Command]) -> click.Parameter:
    return click.command()(option(lambda: None)).params[0]


def build_experiment(given: dict[str, Any], **fixed: Any) -> Experiment:
    """The experiment of a stored configuration, if any, with the given flags on top."""
    given = {name: value for name, value in {**given, **fixed}.items() if value is not None}
    config, trust, data = given.pop("config", None), given.pop("trust", False), given.pop("data", None)
    if data is not None:
        if "dataset" in given:
            raise ValueError("give --dataset or --data, not both")
        named_data_function(data)  # import errors are reported before anything is read or written
        given["dataset"] = data
    hyper_names = set(all_hyper_parameters())
    hyper = {name: None if value == OFF else value for name, value in given.items() if name in hyper_names}
    changes = {name: value for name, value in given.items() if name not in hyper_names}
    if {"local_epochs", "local_steps"} <= changes.keys():
        raise ValueError("give local_epochs or local_steps, not both")
    if config is None:
        if "model" in changes:  # import errors are reported before anything is read or written
            model_factory(changes["model"])
        return _built(Experiment, changes, hyper)
    stored = Experiment.read(config)
    if "method" not in changes:
        refuse_untrusted(stored.method, config, trust=trust)
    if "dataset" not in changes:
        refuse_untrusted_data(stored.dataset, config, trust=trust)
    same_data = changes.get("dataset", stored.dataset) == stored.dataset
    if same_data and changes.get("method", stored.method) == stored.method:
        hyper = {**stored.hyper, **hyper}
    else:  # values for one method or data set do not carry over to another
        changes = {"lr": None, "lr_decay": None, **changes}
    if not same_data:
        changes = {**dict.fromkeys((*settings_of(stored.dataset), "data_dir", "image_size")), **changes}
    if "local_epochs" in given:
        changes["local_steps"] = None
    experiment = _built(partial(replace, stored), {"method": stored.method, "lr": stored.lr, **changes}, hyper)
    if experiment.model is not None:
        trusted_factory(experiment.model, config, named=changes.get("model"), trust=trust)
    return experiment


def _built(make: Callable[..., Experiment], values: dict[str, Any], hyper: dict[str, Any]) -> Experiment:
    """The experiment; a user's method brings its hyperparameters, and its parts decide the default learning rate."""
    method = values.get("method", Experiment.method)
    if not is_own(method):
        return make(**values, hyper=hyper)
    check_hyper(method, hyper)
    hyper = {**hyper_parameters(method), **hyper}
    rates = ADAPTIVE if runs_amsgrad(method_factory(method)(**hyper)) else SGD_BASED
    missing = {name: value for name, value in rates.items() if values.get(name) is None}
    experiment = make(**{**values, **missing}, hyper=hyper)
    experiment.build_messages()  # invalid values are reported before anything is read or written
    return experiment


def flags_of(method: str, methods: list[str], flags: dict[str, Any]) -> dict[str, Any]:
    """The flags for one method; a hyperparameter that none of the methods has is refused."""
    hyper = {name for name in all_hyper_parameters() if flags.get(name) is not None}
    nobody = sorted(name for name in hyper if not any(name in hyper_parameters(one) for one in methods))
    if nobody:
        raise ValueError(f"none of {', '.join(methods)} has the hyperparameter {nobody[0]!r}")
    return {name: value for name, value in flags.items() if name not in hyper or name in hyper_parameters(method)}


def value_type(name: str) -> click.ParamType[Any]:
    """The type of a flag's value: any field of an experiment, any hyperparameter."""
    found = {one.name: one for one in _flag_fields()}
    if name in found:
        option = _field_option(found[name])
    elif name in ours_hyper_parameters():
        option = _hyper_option(name, ours_hyper_parameters()[name])
    elif name in _of_named_methods():
        return _own_option(name).type
    else:
        raise ValueError(
            f"there is no field or hyperparameter {name!r}{nearest(name, [*found, *all_hyper_parameters()])}"
        )
    return _parameter(option).type


def all_hyper_parameters() -> dict[str, Any]:
    """Every hyperparameter of any method, built-in or named by this command, with the first default met."""
    return {**_of_named_methods(), **ours_hyper_parameters()}


def ours_hyper_parameters() -> dict[str, Any]:
    """Every hyperparameter of any recipe, with the first default met."""
    found: dict[str, Any] = {}
    for method in RECIPES:
        found = {**hyper_parameters(method), **found}
    return found


def _flag_fields() -> list[Field[Any]]:
    """The fields that are flags: those of an experiment, then those of the records that it extends."""
    flags = [one for one in fields(Experiment) if "help" in one.metadata]
    return sorted(flags, key=lambda one: one.name not in Experiment.__annotations__)


SUITED = {
    **{
        name: f"by the data set, {value} for {Experiment.dataset}"
        for name, value in SETTINGS[Experiment.dataset].items()
    },
    **dict.fromkeys(("lr", "lr_decay"), "by data set and method, see fedlada methods --dataset NAME"),
}
"""Defaults that depend on the data set, as text."""


@cache
def _types() -> dict[str, Any]:
    """The types of an experiment's fields; evaluating the annotations takes a while."""
    return typing.get_type_hints(Experiment)


def _field_option(one: Field[Any]) -> Callable[[Command], Command]:
    kind = _types()[one.name]
    if isinstance(kind, types.UnionType):  # `float | None`
        kind = typing.get_args(kind)[0]
    help = one.metadata["help"]
    if one.name in SUITED:
        help += f"  [default: {SUITED[one.name]}]"
    elif one.default not in (None, False):
        help += f"  [default: {one.default}]"
    choices = one.metadata["choices"]
    if one.name in ("method", "target"):
        kind = MethodName(choices) if one.name == "method" else TargetValue()
    elif choices:
        kind = NearestChoice(choices)
    return _option(one.name, kind, help)


def _hyper_option(name: str, default: Any) -> Callable[[Command], Command]:
    users = [method for method in RECIPES if name in hyper_parameters(method)]
    help = f"{HYPER_PARAMETERS[name]}  [{'all methods' if len(users) == len(RECIPES) else ', '.join(users)}]"
    return _option(name, NumberOrNone() if default is None else type(default), help)


def _option(name: str, kind: Any, help: str) -> Callable[[Command], Command]:
    flag = name.replace("_", "-")
    if kind is bool:
        return click.option(f"--{flag}/--no-{flag}", default=None, help=help)
    return click.option(f"--{flag}", type=kind, default=None, help=help)
