"""A store of runs by their configuration: nothing is run twice, and unfinished runs are resumed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedlada.runs.archived import is_archived
from fedlada.runs.checkpoints import Checkpoints
from fedlada.runs.diverged import diverged_in
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.workbench.campaign.identity import digest
from fedlada.workbench.campaign.request import DIVERGED, DONE, UNFINISHED, Outcome, Request
from fedlada.workbench.report.listing import read_listing

WRITERS = "`fedlada reproduce` and `fedlada sweep`"
"""The commands whose runs can be found again in an archive or in another store."""


@dataclass(frozen=True)
class Adopted:
    """The runs found elsewhere, and those that were copied."""

    num_runs: int
    """How many runs were looked at."""
    found: frozenset[str]
    """Their names; in an archive only needed runs have one."""
    taken: frozenset[str]
    """The names of those that were copied."""


class RunStore:
    """A folder of run folders, each named by the digest of its configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, request: Request) -> Path:
        """The folder of that run."""
        return self.folder / digest(request.experiment)

    def outcome(self, request: Request, why: str = "") -> Outcome:
        """The outcome of a run as far as it is there; `why` is the error message if it failed just now."""
        folder = self.path(request)
        history = History(read_rows(folder / "metrics.jsonl"))
        end = request.goal.end_in(history)
        if end is not None:
            return Outcome(request, history[:end], DONE, folder)
        diverged = diverged_in(folder)
        if diverged is not None and diverged[0] == len(history):
            return Outcome(request, history, DIVERGED, folder, diverged[1])
        return Outcome(request, history, UNFINISHED, folder, why)

    def adopt(self, places: Iterable[Path], requests: Sequence[Request] = ()) -> Adopted:
        """Copy the runs of other stores (or of campaigns' folders) that go further than ours."""
        runs = [run for place in places for run in runs_in(place)]
        others = (run for run in runs if run.resolve() != (self.folder / run.name).resolve())
        taken = frozenset(run.name for run in others if self.take(run, requests))
        found = frozenset(run.name for run in runs)
        return Adopted(len(found), found, taken)

    def take(self, theirs: Path, requests: Sequence[Request] = ()) -> bool:
        """Copy a run if it is longer than ours, or equally long and ours is thinned; returns whether it did.

        A run that can be resumed is not replaced by one that cannot, unless that one is complete and not thinned.
        """
        ours, beside = self.folder / theirs.name, self.folder / f".{theirs.name}.part"
        self.folder.mkdir(parents=True, exist_ok=True)
        if _progress(theirs) <= _progress(ours):
            return False
        if _can_go_on(ours) and not _can_go_on(theirs) and (is_archived(theirs) or not _settles(theirs, requests)):
            return False
        # A read-only copy, on a mounted disk for instance, has no writer to wait for.
        locks = [FileLock(folder / ".lock") for folder in (theirs, ours) if os.access(folder, os.W_OK)]
        try:
            for lock in locks:
                lock.acquire(timeout=0)
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(theirs, beside, ignore=shutil.ignore_patterns(".*"))
            shutil.rmtree(ours, ignore_errors=True)
            beside.rename(ours)
        except Timeout:
            raise ValueError(f"another process is writing the run {theirs.name}: wait for it") from None
        finally:
            for lock in locks:
                lock.release()
        return True


def runs_in(place: Path) -> list[Path]:
    """The runs of a store, or of a campaign's folder: those of its own store, and those that it lists."""
    store = place / "runs" if (place / "runs").is_dir() else place
    if not store.is_dir():
        raise ValueError(f"{place} is not a folder of runs: name one that {WRITERS} write")
    listing = read_listing(place)
    listed = [] if listing is None else [run.folder for run in listing.runs]
    named = [run for run in (*sorted(store.iterdir()), *listed) if re.fullmatch(r"[0-9a-f]{20}", run.name)]
    runs = {run.resolve(): run for run in named if (run / "config.json").exists()}
    if not runs:
        if any((folder / "config.json").is_file() for folder in (store, *store.iterdir())):
            raise ValueError(
                f"{place} holds runs that are not named by their settings and data, as {WRITERS} name theirs: only "
                "those can be packed or merged; copy the folder as it is"
            )
        raise ValueError(f"{place} holds no runs: name a folder that {WRITERS} write")
    return list(runs.values())


def _can_go_on(folder: Path) -> bool:
    return bool(Checkpoints(folder / "checkpoints").rounds())


def _settles(folder: Path, requests: Sequence[Request]) -> bool:
    """Whether a run of another store has all that is asked of it."""
    store = RunStore(folder.parent)
    asked = [request for request in requests if store.path(request) == folder]
    return bool(asked) and all(store.outcome(request).is_settled for request in asked)


def _progress(folder: Path) -> tuple[int, bool, bool, bool]:
    rounds = len(read_rows(folder / "metrics.jsonl"))
    return rounds, diverged_in(folder) is not None, not is_archived(folder), _can_go_on(folder)
