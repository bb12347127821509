"""Carries out every `fedlada reproduce` command of a page as one campaign, then makes the tables of each.

    python benchmarks/make_again.py docs/results.md --data-dir data --cache runs/full --jobs 4 [--budget 60]
    python benchmarks/make_again.py docs/results.md --data-dir data --cache runs/full --only 'T6.*cifar10' --list

One after the other the commands leave most of a GPU idle while the last run of each ends. Here all runs are in one
queue, the longest first, each once and as far as the most demanding command needs it. Commands whose data are not there
are left out, with the reason. `--merge FILE` takes over the runs of an archive or a folder first. The same command goes
on where it was stopped.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlada.campaign.request import Outcome, Request
from fedlada.campaign.run import Budget, Work, carry_out
from fedlada.campaign.store import RunStore
from fedlada.cli.campaign import read_data, take_over
from fedlada.cli.reproduce import asked_for, reproduce

COMMAND = "fedlada reproduce "


@dataclass(frozen=True)
class Asked:
    """A command as the page has it, with what is put in the place of its own words, and the runs that it needs."""

    line: str
    words: list[str]
    requests: list[Request]


def commands_in(page: str) -> list[str]:
    """The lines that are such a command, each once."""
    return list(dict.fromkeys(line.strip() for line in page.splitlines() if line.strip().startswith(COMMAND)))


def read_commands(lines: Sequence[str], overrides: Sequence[str]) -> list[Asked]:
    """The runs of each command; a command whose data are not there is left out with a sentence."""
    found, why_not = [], dict[str, str]()
    for line in lines:
        words = [*shlex.split(line.removeprefix(COMMAND), comments=True), *overrides]
        flags = reproduce.make_context("reproduce", list(words)).params
        targets = flags.pop("targets")
        try:
            requests = [request for own in asked_for(targets, flags)[1].values() for request in own]
            for request in {request.experiment.dataset: request for request in requests}.values():
                _check_data(request, why_not)
        except ValueError as error:
            print(f"left out: {line}\n  {error}", flush=True)
        else:
            found.append(Asked(line, words, requests))
    return found


def _check_data(request: Request, why_not: dict[str, str]) -> None:
    """Read a data set once, and remember what was said of it."""
    dataset = request.experiment.dataset
    if dataset not in why_not:
        try:
            read_data([request], quiet=False)
            why_not[dataset] = ""
        except ValueError as error:
            why_not[dataset] = str(error)
    if why_not[dataset]:
        raise ValueError(why_not[dataset])


def say_what_is_there(asked: Sequence[Asked], store: RunStore) -> None:
    for one in asked:
        outcomes: list[Outcome] = [store.outcome(request) for request in one.requests]
        done = sum(outcome.is_settled for outcome in outcomes)
        print(f"{done} of {len(outcomes)} runs: {one.line}", flush=True)


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
    lines = [line for line in commands_in(given.page.read_text(encoding="utf-8")) if re.search(given.only, line)]
    if not lines:
        parser.error(f"{given.page} has no such command")
    overrides = ["--cache", str(given.cache)]
    for name, value in (("--data-dir", given.data_dir), ("--device", given.device)):
        overrides += [name, value] if value else []
    asked, store = read_commands(lines, overrides), RunStore(given.cache)
    everything = [request for one in asked for request in one.requests]
    work = Work(
        jobs=given.jobs, budget=Budget(given.budget), discard=given.discard_checkpoints, only_show=bool(given.list)
    )
    take_over(store, given.cache, everything, work, given.merge)
    if not given.list:
        carry_out(everything, store, work)
        for one in asked:
            reproduce.main([*one.words, "--only-show", "--quiet"], standalone_mode=False)
    say_what_is_there(asked, store)


if __name__ == "__main__":
    main()
