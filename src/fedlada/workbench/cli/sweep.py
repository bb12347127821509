"""`fedlada sweep`: a grid over any flag, scored on held-out training data."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedlada.data.source import Source
from fedlada.federation.randomness import bits, permutation
from fedlada.methods.factory import refuse_untrusted
from fedlada.methods.validation import count
from fedlada.runs.folder import discard_states
from fedlada.training.shown import plural
from fedlada.workbench.campaign.identity import data_facts
from fedlada.workbench.campaign.request import DIVERGED
from fedlada.workbench.campaign.run import Work, carry_out
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.campaign.sweep import METRICS, SUMMARIES, Candidate, Scored, Selection, rungs, sweep
from fedlada.workbench.campaign.write import announce, still_open, write_folder
from fedlada.workbench.cli.campaign import campaign_flags, read_data, say_and_end, take_over, work_of
from fedlada.workbench.cli.flags import MethodCommand, build_experiment, experiment_flags, flags_of, value_type
from fedlada.workbench.cli.output import new_folder, print_tables
from fedlada.workbench.cli.unused import refuse_unused
from fedlada.workbench.cli.values import OFF, NearestChoice, UserPath, Words
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.federation import with_known_cohort
from fedlada.workbench.report.command import command_line, run_command
from fedlada.workbench.report.landscape import RIVALS, landscape
from fedlada.workbench.report.stored import say_what_is_replaced
from fedlada.workbench.report.table import Table
from fedlada.workbench.words import shown

HOME = Path("runs") / "sweep"
DEFAULT_VALIDATION = 0.1
TITLE = "Sweep"
THE_SAME_FOR_ALL = ("validation", "target", "stop_at_target", "patience", "rounds", "eval_every", "eval_train_every")
"""Settings without which scores could not be compared."""


@click.command(name="sweep", cls=MethodCommand)
@click.option(
    "--set",
    "grid",
    multiple=True,
    required=True,
    help="NAME=VALUE,VALUE,...: values to try for any flag; can be repeated.",
)
@click.option("--seeds", type=Words(int), default="0", show_default=True, help="Comma-separated seeds.")
@experiment_flags(without=("seed", "target", "stop_at_target", "patience"))
@click.option(
    "--select",
    help=f"Metric to rank by: {', '.join(METRICS)}; by default the first for classification, else the second.",
)
@click.option(
    "--by",
    type=NearestChoice(SUMMARIES),
    default="last",
    show_default=True,
    help="Score by the last, best or mean value of that metric.",
)
@click.option(
    "--halving",
    type=click.IntRange(min=2),
    help="Successive halving: 3 continues the best third to three times the rounds.",
)
@click.option(
    "--each-alone", is_flag=True, help="Vary one setting at a time; the others keep the values given by their flags."
)
@click.option("--sample", type=click.IntRange(min=1), help="Run this many random combinations, the same each time.")
@click.option("--out", type=UserPath(), help="The output folder; runs found there are not repeated.")
@campaign_flags
def sweep_command(grid: tuple[str, ...], seeds: list[int], out: Path | None, **flags: Any) -> None:
    """Tune hyperparameters: run every combination and rank them on held-out training data.

    A tenth of the training data is held out for ranking (--validation); the test set is then not evaluated at all. A
    hyperparameter applies to the methods that have it.

    \b
    Example:
      fedlada sweep --set alpha=0.05,0.1,0.3 --set lr=0.003,0.01 --rounds 9 --halving 3 --out runs/swept
    """
    work, quiet = work_of(flags), flags["quiet"] or flags["as_json"]
    if work.shard.of > 1 and flags["halving"]:
        raise ValueError("--halving needs the results of all runs: leave --shard out")
    if flags["validation"] is None and flags["config"] is None:
        flags["validation"] = DEFAULT_VALIDATION
    candidates = candidates_of(axes_of(grid), seeds, flags)
    first = candidates[0].experiments[0]
    if flags["select"] is None:
        flags["select"] = METRICS[0] if data_facts(first).source.has_classes else METRICS[1]
    selection = Selection(flags["select"], flags["by"])
    if selection.metric.startswith("validation_") and not all(one.experiments[0].validation for one in candidates):
        raise ValueError(f"{selection.metric} needs held-out data: give --validation a share above 0")
    count("eval_every", first.eval_every)
    every = first.eval_every
    if selection.metric.startswith("full_train_"):
        if first.eval_train_every is None or first.eval_train_every > first.rounds:
            raise ValueError(
                f"{selection.metric} is measured with --eval-train-every, at most the {first.rounds} rounds"
            )
        every = first.eval_train_every
    steps = rungs(len(candidates), first.rounds, flags["halving"], every)
    everything = [request for one in candidates for request in one.requests(first.rounds)]
    read_data(everything, quiet=quiet)
    folder = out or new_folder("sweep")
    # Without --out every sweep has a new folder, but the same command must find its runs again.
    store = RunStore(flags["cache"] or (folder / "runs" if out else HOME / "runs"))
    take_over(store, folder, everything, work, flags["merge"])
    command = _command(grid, seeds, flags, out)
    if not flags["quiet"]:
        say_what_is_replaced(folder, command)
    if not quiet:
        plan = f" in {len(steps)} rungs up to round {', '.join(str(step.rounds) for step in steps)}"
        print(
            f"{plural(len(candidates), 'configuration')}, {plural(len(seeds), 'seed')}"
            f"{plan if len(steps) > 1 else ''}; runs are kept in "
            f"{store.folder}",
            file=sys.stderr,
        )
    announce(folder, TITLE, [store.outcome(request) for request in everything])
    # A rung resumes from the checkpoints of the previous one: with several rungs they are discarded only at the end.
    rung_work = replace(work, discard=work.discard and len(steps) == 1)
    scored = sweep(candidates, steps, selection, lambda requests: carry_out(requests, store, rung_work))
    outcomes = [outcome for one in scored for outcome in one.outcomes]
    if work.discard and all(outcome.is_settled for outcome in outcomes):  # further rungs need them
        for outcome in outcomes:
            discard_states(outcome.folder)
    _report(scored, selection, folder, candidates[0], command, flags, work)


def axes_of(grid: tuple[str, ...]) -> dict[str, list[Any]]:
    """The values of each swept name."""
    axes: dict[str, list[Any]] = {}
    for text in grid:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values.strip():
            raise ValueError(f"--set must be written like alpha=0.05,0.1, got {text!r}")
        if name in ("seed", *THE_SAME_FOR_ALL):
            way = "seeds have a flag of their own, --seeds" if name == "seed" else "every run has the same"
            raise ValueError(f"--set cannot vary {name!r}: {way}")
        if name in axes:
            raise ValueError(f"--set names {name!r} twice: give all its values at once")
        kind = value_type(name)
        words = [word.strip() for word in values.split(",") if word.strip()]
        try:
            axes[name] = list(dict.fromkeys(kind.convert(word, None, None) for word in words))
        except click.BadParameter as error:
            raise ValueError(f"--set {name}: {error.message.rstrip('.')}") from None
    return axes


def candidates_of(axes: dict[str, list[Any]], seeds: list[int], flags: dict[str, Any]) -> list[Candidate]:
    """Every combination; equal experiments, where a method lacks the varied hyperparameter, count once."""
    given = {name: value for name, value in flags.items() if name not in NOT_OF_EXPERIMENTS}
    stored = {} if given["config"] is None else {"method": Experiment.read(given["config"]).method}
    usual = given["method"] or stored.get("method", Experiment.method)
    if given["method"] is None and given["config"] is not None and "method" not in axes:
        refuse_untrusted(usual, given["config"], trust=given["trust"])
    methods = axes.get("method", [usual])
    alone = flags["each_alone"]
    if alone and "method" in axes:
        raise ValueError("--each-alone is about the settings of one method: leave method out of --set")
    if alone and flags["sample"] is not None:
        raise ValueError(
            "--sample draws from combinations, and with --each-alone there are none: leave one of them out"
        )
    found: dict[str, Candidate] = {}
    if alone:  # first the values of the other flags alone, then every value by itself
        grid = [{}, *({name: value} for name, values in axes.items() for value in values)]
    else:
        grid = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for values in grid:
        method = values.get("method", usual)
        beside = {name: value for name, value in given.items() if RIVALS.get(name) not in values}
        own = flags_of(method, methods, {**beside, **values, "method": method})
        built = (build_experiment(own, seed=seed) for seed in seeds)
        experiments = tuple(with_known_cohort(one, partial(_data_of, one)) for one in built)
        kept = {name: value for name, value in values.items() if name in own}
        candidate = Candidate({name: _value_of(experiments[0], name) for name in axes} if alone else kept, experiments)
        found.setdefault(json.dumps(experiments[0].to_json(), sort_keys=True), candidate)
    everything = list(found.values())
    refuse_unused({**given, **axes}, [one for candidate in everything for one in candidate.experiments])
    if flags["sample"] is None:
        return everything
    # In the order of the grid, so that an unsorted table is readable.
    drawn = permutation(bits(0, "sweep"), len(everything))[: flags["sample"]]
    return [everything[number] for number in sorted(drawn.tolist())]


def _data_of(experiment: Experiment) -> Source:
    return data_facts(experiment).source


def _value_of(experiment: Experiment, name: str) -> Any:
    """The value of an experiment's field, as one would type it."""
    full = experiment.resolved()
    if full.local_steps is not None and name == "local_epochs":
        return OFF
    value = full.hyper[name] if name in full.hyper else getattr(full, name)
    return OFF if value is None else value


HOW = {"jobs", "budget", "shard", "merge", "discard_checkpoints", "only_show", "quiet", "as_json"}
"""Flags that decide how runs are carried out and shown, not which runs."""
NOT_OF_EXPERIMENTS = {*HOW, "select", "by", "halving", "cache", "each_alone", "sample"}


def _report(
    scored: list[Scored],
    selection: Selection,
    folder: Path,
    first: Candidate,
    command: str,
    flags: dict[str, Any],
    work: Work,
) -> None:
    outcomes = [outcome for one in scored for outcome in one.outcomes]
    table, problems = _table(scored, selection, first.experiments[0]), still_open(outcomes, work)
    if all_diverged := all(outcome.status == DIVERGED for outcome in outcomes):
        problems = [*problems, "Every run diverged, so there is no best: lower the learning rates or clip gradients."]
    best = scored[0] if scored[0].score.mean is not None and not any(not o.is_settled for o in outcomes) else None
    winner = ""
    if best is not None:  # trained on all the training data, and evaluated on the test set
        config = {**best.candidate.experiments[0].to_json(), "validation": 0.0}
        winner = run_command(config, best.outcomes[0].folder)
    notes = [*problems, *([f"The best on all the training data: {winner}"] if winner else [])]
    charts = landscape(scored, selection, first.values if flags["each_alone"] else None)
    write_folder(folder, TITLE, tables=[table], charts=charts, outcomes=outcomes, notes=notes, command=command)
    if flags["as_json"]:
        result = None if best is None else {"values": dict(best.candidate.values), "score": best.score.mean}
        print(json.dumps({"folder": str(folder), "best": result, "command": winner, "table": table.to_json()}))
    elif not flags["quiet"]:
        print_tables([table])
        if winner:
            print(f"the best on all the training data: {winner}")
        print(f"in {folder}: report.html, table.md, table.csv, table.tex, tables.json and the pictures")
    say_and_end(outcomes, problems)
    if all_diverged:
        raise click.exceptions.Exit(1)


def _table(scored: list[Scored], selection: Selection, first: Experiment) -> Table:
    names = list(dict.fromkeys(name for one in scored for name in one.candidate.values))
    rows = tuple(
        (
            str(place),
            *(shown(one.candidate.values[name]) if name in one.candidate.values else "-" for name in names),
            one.score.text(4, without="-"),
            str(one.rounds),
        )
        for place, one in enumerate(scored, start=1)
    )
    is_held_out = selection.metric.startswith("validation_")
    held = f" on {100 * first.validation:g} % of the training data, held out" if is_held_out else ""
    # Without held-out data a run evaluates the test set, though nothing is chosen by it.
    histories = [outcome.history for one in scored for outcome in one.outcomes]
    is_tested = any(name.startswith("test_") for history in histories for row in history for name in row)
    test = "was evaluated, but nothing was chosen by it" if is_tested else "was not evaluated"
    way = f"the {selection.by} {selection.metric} of {plural(len(scored[0].outcomes), 'seed')}{held}"
    note = f"Sorted by {way}; the test set {test}."
    return Table(TITLE, ("place", *names, f"{selection.by} {selection.metric}", "rounds"), rows, (note,))


def _command(grid: tuple[str, ...], seeds: list[int], flags: dict[str, Any], out: Path | None) -> str:
    """The command that reproduces this folder on one machine."""
    given = [(name, value) for name, value in flags.items() if name not in HOW]
    return command_line("sweep", [*(("set", one) for one in grid), ("seeds", seeds), *given, ("out", out)])
