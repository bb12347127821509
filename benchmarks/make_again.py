"""Carries out every `fedlada reproduce` command of a page as one campaign, then makes the tables of each.

    python benchmarks/make_again.py docs/results/commands.md --data-dir data --cache runs --jobs 4 [--budget 60]
    python benchmarks/make_again.py docs/results/commands.md --data-dir data --cache runs --only 'T6.*cifar10' --list

One after the other the commands leave most of a GPU idle while the last run of each ends. Here all runs are in one
queue, the longest first, each once and as far as the most demanding command needs it. Commands whose data are not there
are left out, with the reason, and tables are made of those that have all their runs. `--merge FILE` takes over the runs
of an archive or a folder first. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from fedlada.methods.validation import count
from fedlada.paper.reproduce import asked_for, reproduce
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.campaign.run import Budget, Work, carry_out
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.cli.campaign import read_data, take_over

BEGINNING = "fedlada reproduce "


@dataclass(frozen=True)
class Command:
    """A command as the page has it, its words with what is put in their place, and the runs that it needs."""

    line: str
    words: list[str]
    requests: list[Request]


def lines_in(page: str) -> list[str]:
    """The lines that are such a command, each once, whatever is remarked behind them."""
    found: dict[str, str] = {}
    for line in page.splitlines():
        if line.strip().startswith(BEGINNING):
            found.setdefault(line.partition(" #")[0].strip(), line.strip())
    return list(found.values())


def words_of(line: str) -> list[str]:
    return shlex.split(line.removeprefix(BEGINNING), comments=True)


def read_commands(lines: Sequence[str], overrides: Sequence[str]) -> list[Command]:
    """The commands with their runs; one that cannot be carried out here is left out, with the reason."""
    found, why_not = [], dict[Hashable, str]()
    for line in lines:
        try:
            words = [*words_of(line), *overrides]
            flags = reproduce.make_context("reproduce", list(words)).params
            requests = _requests(flags, why_not)
        except (ValueError, click.ClickException) as error:
            print(f"left out: {line}\n  {getattr(error, 'message', error)}", flush=True)
        else:
            found.append(Command(line, words, requests))
    return found


def _requests(flags: dict[str, Any], why_not: dict[Hashable, str]) -> list[Request]:
    """The runs of a command whose data are there; data are read once, and what was said of them is remembered."""
    targets = flags["targets"]
    if "theory" in targets:
        raise ValueError("theory has no runs")
    _, by_target = asked_for(targets, flags)
    requests = [request for own in by_target.values() for request in own]
    for request in requests:
        experiment = request.experiment
        data = (experiment.dataset, experiment.data_dir, experiment.image_size)
        if data not in why_not:
            try:
                read_data([request], quiet=False)
                why_not[data] = ""
            except ValueError as error:
                why_not[data] = str(error)
        if why_not[data]:
            raise ValueError(why_not[data])
    return requests


def say_what_is_there(commands: Sequence[Command], store: RunStore) -> list[Command]:
    """A line for each command; those that have all their runs."""
    complete = []
    for command in commands:
        settled = [store.outcome(request).is_settled for request in command.requests]
        print(f"{sum(settled)} of {len(settled)} runs: {command.line}", flush=True)
        complete += [command] if all(settled) else []
    return complete


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--data-dir", help="in the place of what the commands say")
    parser.add_argument("--device", help="likewise")
    parser.add_argument("--cache", type=Path, required=True, help="where all runs are kept")
    parser.add_argument("--only", default="", help="of the commands only those in which this expression is found")
    parser.add_argument("--jobs", type=int, help="runs at a time")
    parser.add_argument("--budget", type=float, help="minutes, after which all is saved")
    parser.add_argument("--merge", type=Path, action="append", default=[], help="take over these runs first")
    parser.add_argument("--discard-checkpoints", action="store_true", help="keep none of runs that are done")
    parser.add_argument("--list", action="store_true", help="run nothing: say which runs are there")
    given = parser.parse_args()
    try:
        sys.exit(make_again(given))
    except (ValueError, OSError, re.error) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def make_again(given: argparse.Namespace) -> int:
    """All that is asked for; the exit code."""
    budget, store = Budget(given.budget), RunStore(given.cache)
    if given.jobs is not None:
        count("--jobs", given.jobs)
    lines = [line for line in lines_in(given.page.read_text(encoding="utf-8")) if re.search(given.only, line)]
    if not lines:
        raise ValueError(f"{given.page} has no such command")
    overrides = ["--cache", str(given.cache)]
    for name, value in (("--data-dir", given.data_dir), ("--device", given.device)):
        overrides += [name, value] if value else []
    commands = read_commands(lines, overrides)
    if not commands:
        return 1
    everything = [request for command in commands for request in command.requests]
    work = Work(jobs=given.jobs, budget=budget, discard=given.discard_checkpoints, only_show=given.list)
    take_over(store, given.cache, everything, work, given.merge)
    failures = {outcome.why for outcome in carry_out(everything, store, work) if not outcome.is_settled and outcome.why}
    complete = say_what_is_there(commands, store)
    for why in sorted(failures):
        print(f"failed: {why}", flush=True)
    for command in complete if not given.list else []:
        reproduce.main([*command.words, "--only-show", "--quiet"], standalone_mode=False)
    return 1 if failures else 0


if __name__ == "__main__":
    main()
