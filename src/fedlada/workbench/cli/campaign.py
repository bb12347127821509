"""Flags and messages that `fedlada reproduce` and `fedlada sweep` share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from fedlada.workbench.campaign.archive import adopt_archive
from fedlada.workbench.campaign.identity import device_kind
from fedlada.workbench.campaign.request import UNFINISHED, Outcome, Request
from fedlada.workbench.campaign.run import Budget, Shard, Work, check_devices
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.cli.output import make_folder
from fedlada.workbench.cli.values import UserPath
from fedlada.workbench.labels import say_unused_classes
from fedlada.workbench.progress import Chores

Command = Callable[..., Any]


def campaign_flags(command: Command) -> Command:
    """Flags for running, storing and showing many runs."""
    for option in reversed(
        (
            click.option(
                "--jobs", type=click.IntRange(min=1), help="Parallel runs; by default one per CPU core, or one per GPU."
            ),
            click.option(
                "--budget",
                type=float,
                help="Save all runs and exit after this many minutes; the same command resumes them.",
            ),
            click.option("--shard", default="1/1", help="Run only this shard of the runs, such as 2/4."),
            click.option(
                "--merge",
                multiple=True,
                type=UserPath(),
                help="First import the runs of this folder or archive, such as another shard's; can be repeated.",
            ),
            click.option("--cache", type=UserPath(), help="Folder of the runs; by default OUT/runs."),
            click.option("--discard-checkpoints", is_flag=True, help="Delete the checkpoints of finished runs."),
            click.option("--only-show", is_flag=True, help="Run nothing; show existing results."),
            click.option("--quiet", is_flag=True, help="Print no progress and no tables."),
            click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON."),
        )
    ):
        command = option(command)
    return command


def work_of(flags: dict[str, Any]) -> Work:
    """The settings of a campaign, from the flags."""
    return Work(
        jobs=flags["jobs"],
        budget=Budget(flags["budget"]),
        shard=Shard.parse(flags["shard"]),
        quiet=flags["quiet"] or flags["as_json"],
        discard=flags["discard_checkpoints"],
        only_show=flags["only_show"],
    )


def read_data(requests: Sequence[Request], *, quiet: bool) -> None:
    """Read the data before anything is written: missing data is reported, and images are decoded once."""
    seen = set()
    with Chores(quiet=quiet) as bars:
        for request in requests:
            experiment = request.experiment
            device_kind(experiment.device)
            key = (experiment.dataset, experiment.data_dir, experiment.image_size)
            if key not in seen:
                source = experiment.load_data(bars)
                experiment.build_cohorts(source)
                if not quiet:
                    say_unused_classes(experiment, source)
            seen.add(key)


def take_over(store: RunStore, folder: Path, requests: Sequence[Request], work: Work, places: Sequence[Path]) -> int:
    """Make the folder and import existing runs; returns how many of the needed ones were imported."""
    if not places and not work.only_show:  # with imported runs, only the missing ones run here
        check_devices(requests, store, work.shard)
    make_folder(folder)
    adopted = [
        adopt_archive(store, place, requests) if place.is_file() else store.adopt([place], requests) for place in places
    ]
    needed = {store.path(request).name for request in requests}
    if places and not any(needed & one.found for one in adopted):
        num_runs = sum(one.num_runs for one in adopted)
        print(
            f"fedlada: none of the {num_runs} runs in {', '.join(map(str, places))} is needed here: the version, the "
            "data, the settings or the kind of device differ (--device cuda names the runs of a GPU, also where there "
            "is none)",
            file=sys.stderr,
        )
    return len({name for one in adopted for name in one.taken & needed})


def say_and_end(outcomes: Sequence[Outcome], sentences: Sequence[str]) -> None:
    """Report what is not done; a failed run makes the command fail."""
    for sentence in sentences:
        print(f"fedlada: {sentence.rstrip('.')}", file=sys.stderr)
    if any(outcome.status == UNFINISHED and outcome.why for outcome in outcomes):
        raise click.exceptions.Exit(1)
