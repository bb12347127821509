"""`fedlada run` and `fedlada resume`."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from fedlada.data.own import is_own_data
from fedlada.data.source import Source
from fedlada.engines import processes
from fedlada.federation.partition import IID
from fedlada.messages.spec import PRESETS, short, vectors
from fedlada.methods.factory import hyper_parameters, is_own
from fedlada.models.factory import is_built_in
from fedlada.runs.config import how_made, is_experiment, is_federation, read_config, refuse_other_than_experiment
from fedlada.training.history import Result
from fedlada.training.observers import Callback, SaysStored, loss_in_words
from fedlada.training.progress import live_or_plain
from fedlada.training.resolve import resolve_device
from fedlada.training.shown import plural
from fedlada.training.simulation import Observer, Simulation
from fedlada.training.target import JUDGES, Target, lower_is_better
from fedlada.workbench.cli.flags import (
    MethodCommand,
    build_experiment,
    data_flag,
    experiment_flags,
    method_flag,
    model_flag,
    trust_flag,
)
from fedlada.workbench.cli.output import new_folder
from fedlada.workbench.cli.unused import refuse_unused
from fedlada.workbench.cli.values import UserPath
from fedlada.workbench.ending import asked_by, when_asked_to_end
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.federation import num_clients_of, with_known_cohort
from fedlada.workbench.labels import say_unused_classes
from fedlada.workbench.load import refuse_moved_data, stored_experiment
from fedlada.workbench.progress import Chores
from fedlada.workbench.report.stored import refuse_several_runs
from fedlada.workbench.target import check_target
from fedlada.workbench.words import as_file_name, in_words

quiet_flag = click.option("--quiet", is_flag=True, help="Print no progress and no summary.")
json_flag = click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")


@click.command(cls=MethodCommand)
@experiment_flags()
@click.option("--out", type=UserPath(), help="The run folder; a run found there is resumed.")
@quiet_flag
@json_flag
def run(out: Path | None, quiet: bool, as_json: bool, **flags: Any) -> None:
    """Run one method on one data set.

    For your own method, --method package.module:factory, the factory's arguments become flags. The function of --data
    returns (train, test) or (train, test, partition), as simulate takes them; test may be None.

    \b
    Example:
      fedlada run --method fedlada --alpha 0.1 --rounds 30 --out runs/alpha
    """
    experiment = build_experiment(flags)
    refuse_unused(flags, [experiment])
    folder = out or new_folder(as_file_name(f"{experiment.method}-{experiment.dataset}-seed{experiment.seed}"))
    refuse_other_than_experiment(folder)  # before anything is read or printed
    refuse_several_runs(folder)
    execute(experiment, folder, quiet=quiet, as_json=as_json, checks_target=True)


class ResumeCommand(click.Command):
    """A command that says which settings of a stored run can change."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a flag of `fedlada run` is refused with the reason."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in {
                word for one in run.get_params(ctx) for word in (*one.opts, *one.secondary_opts)
            }:
                raise
            raise click.UsageError(
                f"a resumed run keeps its settings: only --rounds and --data-dir can change; to change "
                f"{error.option_name}, start a new run with fedlada run --config FOLDER/config.json",
                ctx,
            ) from None


@click.command(cls=ResumeCommand)
@click.argument("folder", type=UserPath())
@click.option("--rounds", type=click.IntRange(min=1), help="Continue to this round; at least as many as planned.")
@click.option("--data-dir", help="Folder of the data, if they were moved.")
@data_flag
@method_flag
@model_flag
@trust_flag
@quiet_flag
@json_flag
def resume(
    folder: Path,
    rounds: int | None,
    data_dir: str | None,
    data: str | None,
    method: str | None,
    model: str | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Resume a run that was stopped or killed; the result is the same as without the interruption.

    \b
    Example:
      fedlada run --rounds 20 --out runs/long
      fedlada resume runs/long --rounds 40
    """
    if not is_experiment(stored := read_config(folder)):
        way = "start it" if is_federation(stored) else "call simulate"
        raise ValueError(f"{folder} was {how_made(stored)}: {way} with the same arguments and out= again")
    experiment = stored_experiment(folder, stored, model=model, method=method, data=data, trust=trust)
    if rounds is not None:
        if rounds < experiment.rounds:
            raise ValueError(
                f"{folder} was to have {experiment.rounds} rounds, more than --rounds {rounds}: leave --rounds out to "
                "continue to that round, or give more; Ctrl-C ends a run earlier"
            )
        experiment = replace(experiment, rounds=rounds)
    if data_dir is not None:
        experiment = replace(experiment, data_dir=data_dir)
    else:
        refuse_moved_data(folder, experiment)
    execute(experiment, folder, quiet=quiet, as_json=as_json)


def execute(experiment: Experiment, folder: Path, *, quiet: bool, as_json: bool, checks_target: bool = False) -> None:
    """Run an experiment in its folder, with progress, and print a summary.

    The target is checked where it was given: a resumed run cannot change it.
    """
    resolve_device(experiment.device)
    is_first = processes.is_first()
    quiet = quiet or not is_first
    with Chores(quiet=quiet or as_json) as bars:
        source = experiment.load_data(bars)
    experiment = with_known_cohort(experiment, lambda: source)
    experiment.build_cohorts(source)  # errors about the data are reported first
    if not quiet:
        say_unused_classes(experiment, source)
    if checks_target:
        check_target([experiment], source)
    callbacks: list[Callback] = []
    if not quiet and not as_json:
        print(_headline(experiment, folder, source), file=sys.stderr)
        if unused := _rules_without_effect(experiment):
            print(
                f"fedlada: {experiment.method} does not send {unused[0]}: its rule in --messages has no effect",
                file=sys.stderr,
            )
        callbacks += [EngineLine(), SaysStored(folder), live_or_plain(experiment.method)]
    try:
        interrupt = Interrupt()
        with when_asked_to_end(interrupt.handle):
            result = experiment.run([*callbacks, interrupt], source, out=folder)
    finally:
        processes.leave()
    if not is_first:
        return
    summary = _summary(experiment, folder, result)
    if as_json:
        print(json.dumps(summary))
    elif not quiet:
        _print_summary(summary)
    if interrupt.pressed:
        name = experiment.model or ""
        named = "" if not name or is_built_in(name) else f" --model {shlex.quote(name)}"
        named += f" --method {shlex.quote(experiment.method)}" if is_own(experiment.method) else ""
        named += f" --data {shlex.quote(experiment.dataset)}" if is_own_data(experiment.dataset) else ""
        print(f"fedlada: stopped; continue with: fedlada resume {folder}{named}", file=sys.stderr)
        raise click.exceptions.Exit(130)


class EngineLine(Observer):
    """Prints the engine, the reason for it, the loss, and the round from which a stored run resumes."""

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        """Before the first round."""
        print(f"fedlada: {simulation.engine.why}; the loss is {loss_in_words(simulation.engine)}", file=sys.stderr)
        if 0 < simulation.round < num_rounds:
            print(f"fedlada: resuming after round {simulation.round} of {num_rounds}", file=sys.stderr)


class Interrupt(Observer):
    """The first Ctrl-C, SIGTERM or closed terminal saves and ends the run after its round, the second at once."""

    def __init__(self) -> None:
        self.pressed = False
        self.reason = ""

    def handle(self, number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed, self.reason = True, asked_by(number)
        if processes.is_first():
            again = "press" if number == signal.SIGINT else "send it"
            print(f"\nfedlada: finishing this round, then saving ({again} again to stop at once)", file=sys.stderr)

    def on_round(self, simulation: Simulation, row: dict[str, Any]) -> None:
        """Stop if asked to."""
        if self.pressed:
            simulation.pause(self.reason)


def _rules_without_effect(experiment: Experiment) -> list[str]:
    """Vectors with a rule that the method does not send. A preset has rules for the vectors of all methods."""
    words = experiment.resolved().messages.split(":")
    for preset in PRESETS.values():
        known = preset.split(":")
        if {word.partition("=")[0] for word in known} <= {word.partition("=")[0] for word in words}:
            words = [word for word in words if word not in known]
    own = vectors(experiment.build_method())
    sent = {name for path in own for name in (short(path), f"{path.partition('/')[0]}/{short(path)}")}
    return [name for name, equals, _ in (word.partition("=") for word in words) if equals and name not in sent]


def _headline(experiment: Experiment, folder: Path, source: Source) -> str:
    full = experiment.resolved()
    said = {"natural": "named by the data", "dirichlet": f"Dirichlet {full.concentration:g}"}
    kind = said.get(str(full.partition), full.partition)
    kind = "iid" if full.partition == "natural" and isinstance(source.partition, IID) else kind
    clients = f"{full.cohort_size} of {num_clients_of(full, source)} clients ({kind})"
    usual = hyper_parameters(full.method)
    own = {name: value for name, value in full.hyper.items() if value != usual[name]}
    unusual = {"combiner": full.combiner, "attack": full.attack, "messages": experiment.messages}
    own |= {name: value for name, value in unusual.items() if value not in ("mean", None, "float32")}
    values = in_words({"lr": full.lr, "lr_decay": full.lr_decay, **own})
    rounds = plural(full.rounds, "round")
    task = f"{full.method} on {full.dataset} ({full.model}): {rounds} of {clients}, seed {full.seed}"
    return f"{task}, in {folder}\nfedlada: {values}; other values as in fedlada methods"


def _summary(experiment: Experiment, folder: Path, result: Result) -> dict[str, Any]:
    history = result.history
    metric = history.usual_judge
    _, values = history.measured(metric)
    values = values if metric.startswith(("test_", "validation_")) else []  # measurements of clients follow below
    summary: dict[str, Any] = {
        "method": experiment.method,
        "rounds": len(history),
        "stopped": result.stopped,
        "test_accuracy": None,
        "best_accuracy": None,
        **({metric: values[-1], f"best_{metric.removeprefix('test_')}": history.best(metric)} if values else {}),
        "loss": result.loss,
        "megabytes": sum(row["bytes_up"] + row["bytes_down"] for row in history) / 1e6,
        "seconds": sum(row.get("seconds") or 0.0 for row in history),
        "folder": str(folder),
    }
    if history and history[-1].get("epsilon") is not None:
        summary |= {"epsilon": history[-1]["epsilon"], "delta": experiment.target_delta}
    if tested := {name: row[name] for row in history[-1:] for name in row if name.startswith(("client_", "personal_"))}:
        summary["each_client"] = tested
    target = None if experiment.target is None else Target.parse(experiment.target)
    if target is not None and not isinstance(experiment.target, str) and not lower_is_better(metric):
        target = Target(metric, target.value)  # with held-out data the test set is not evaluated
    if target is not None and history.measured(target.metric)[1]:
        summary["target"] = experiment.target
        summary["rounds_to_target"] = history.rounds_to(target.value, target.metric)
    return summary


def _print_summary(summary: dict[str, Any]) -> None:
    metric = next((name for name in JUDGES if summary.get(name) is not None), None)
    measured = ""
    if metric is not None:
        best = summary[f"best_{metric.removeprefix('test_')}"]
        measured = f", {metric.replace('_', ' ')} {summary[metric]:.4f} (best {best:.4f})"
    print(f"{summary['method']}: {plural(summary['rounds'], 'round')}{measured}")
    for whose, said in (("client", "each client's held-out samples"), ("personal", "the same after its own steps")):
        what = f"{whose}_accuracy" if f"{whose}_accuracy" in summary.get("each_client", {}) else f"{whose}_loss"
        found = [summary.get("each_client", {}).get(f"{what}{of}") for of in ("", "_worst_decile", "_std")]
        if None not in found:
            mean, worst, std = found
            print(f"{said}: {what.split('_')[1]} {mean:.4f}, worst decile {worst:.4f}, standard deviation {std:.4f}")
    if "target" in summary:
        reached = summary["rounds_to_target"]
        arrived = "never reached" if reached is None else f"reached in round {reached}"
        print(f"target {Target.parse(summary['target'])}: {arrived}")
    if "epsilon" in summary:
        spent = f"epsilon {summary['epsilon']:.4g} at delta {summary['delta']:g}"
        print(f"privacy spent: {spent}, towards those who cannot guess the seed")
    print(f"{summary['seconds']:.1f} s of training, {summary['megabytes']:.2f} MB sent; {summary['stopped']}")
    print(f"in {summary['folder']}: config.json, metrics.jsonl, checkpoints/, model.safetensors")
    print(f"view it: fedlada report {shlex.quote(summary['folder'])}")
