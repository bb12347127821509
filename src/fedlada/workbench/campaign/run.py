"""Runs the missing runs of a campaign: in parallel, within a time budget, as one shard of several."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedlada.engines.processes import refuse_several
from fedlada.methods.validation import count, positive
from fedlada.runs.folder import discard_states
from fedlada.training.resolve import resolve_device
from fedlada.training.shown import plural
from fedlada.workbench.campaign.identity import whole_length
from fedlada.workbench.campaign.request import Outcome, Request
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.parallel import Job, run_jobs


@dataclass(frozen=True)
class Shard:
    """One of several equal shares of the runs, the same on every machine that asks for the same runs."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        count("shard", self.of)
        if not 1 <= self.number <= self.of:
            raise ValueError(f"shard must be one of 1/{self.of} to {self.of}/{self.of}, got {self.number}/{self.of}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that is written "2/4"."""
        number, slash, of = text.partition("/")
        if not slash or not number.strip().isdigit() or not of.strip().isdigit():
            raise ValueError(f"shard must be written like 2/4, got {text!r}")
        return cls(int(number), int(of))

    def share(self, names: Sequence[str]) -> set[str]:
        """This shard's names: every n-th, so that shards differ by at most one."""
        return set(sorted(set(names))[self.number - 1 :: self.of])


class Budget:
    """A time budget: all runs are then saved and the command ends; the same command resumes them."""

    def __init__(self, minutes: float | None) -> None:
        self.deadline: float | None = None
        if minutes is not None:
            positive("budget", minutes)
            # Leave time for saving and for the report.
            self.deadline = time.time() + 60 * minutes - min(10.0, 6 * minutes)

    @property
    def is_spent(self) -> bool:
        """Whether the time is over."""
        return self.deadline is not None and time.time() >= self.deadline


@dataclass(frozen=True)
class Work:
    """Settings of how a campaign is carried out."""

    jobs: int | None = None
    budget: Budget = field(default_factory=lambda: Budget(None))
    shard: Shard = field(default_factory=Shard)
    quiet: bool = False
    discard: bool = False
    """Whether to remove the checkpoints of finished runs, which can be many gigabytes."""
    only_show: bool = False
    """Whether to run nothing and show existing results."""


def carry_out(requests: Sequence[Request], store: RunStore, work: Work) -> list[Outcome]:
    """Run what is missing, as far as time and shard allow; returns the outcome of every request, in order."""
    refuse_several("several runs")
    jobs: list[Job] = []
    if not work.only_show:
        check_devices(requests, store, work.shard)
        jobs = [_job(store.folder / name, own, work.discard) for name, own in _open(requests, store, work.shard)]
    jobs.sort(
        key=lambda job: -job.cost * job.num_rounds
    )  # the longest first, so that no core waits for them at the end
    failures: list[str] = []
    if jobs:
        store.folder.mkdir(parents=True, exist_ok=True)
        failures = run_jobs(
            jobs,
            num_processes=work.jobs,
            quiet=work.quiet,
            deadline=work.budget.deadline,
            go_on="the same command resumes it",
        )
    said = {job.folder: why for job, why in zip(jobs, failures, strict=True)}
    outcomes = [store.outcome(request, said.get(store.path(request), "")) for request in requests]
    if work.discard:  # of runs that were done before; the others have discarded theirs
        mine = work.shard.share([outcome.folder.name for outcome in outcomes])
        open_ones = {outcome.folder for outcome in outcomes if not outcome.is_settled}
        for folder in {outcome.folder for outcome in outcomes} - open_ones:
            if folder.name in mine:
                discard_states(folder)
    return outcomes


def check_devices(requests: Sequence[Request], store: RunStore, shard: Shard) -> None:
    """Refuse a device that is not here, if anything must be run on it."""
    needed = [{request.experiment.device for request in own} for _, own in _open(requests, store, shard)]
    for device in dict.fromkeys(device for devices in needed for device in sorted(devices)):
        try:
            resolve_device(device)
        except ValueError as error:
            num_runs = sum(device in devices for devices in needed)
            raise ValueError(f"{error}; {plural(num_runs, 'run')} not there yet cannot do without") from None


def _open(requests: Sequence[Request], store: RunStore, shard: Shard) -> Iterable[tuple[str, list[Request]]]:
    """The names of this shard's unfinished runs, and the requests that need them."""
    names = [store.path(request).name for request in requests]
    mine = shard.share(names)
    needed: dict[str, list[Request]] = {}
    for name, request in zip(names, requests, strict=True):
        if name in mine and not store.outcome(request).is_settled:
            needed.setdefault(name, []).append(request)
    return needed.items()


def _job(folder: Path, requests: Sequence[Request], discards: bool) -> Job:
    """One run for all requests that need it, as long as the longest of them."""
    longest = max((request.experiment for request in requests), key=lambda experiment: experiment.rounds)
    # The goals alone decide where it ends.
    config = replace(longest, rounds=whole_length(longest), target=None, stop_at_target=False, patience=None).to_json()
    goals = tuple(dict.fromkeys(request.goal for request in requests))
    return Job(requests[0].label, config, folder, goals, discards)
