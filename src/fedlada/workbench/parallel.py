"""Several runs at a time, each in a process of its own and in its own folder, with one progress display."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedlada.data.source import Source
from fedlada.runs.diverged import DIVERGED_FILE
from fedlada.runs.files import write_json
from fedlada.runs.folder import discard_states
from fedlada.training.history import Row
from fedlada.training.observers import describe
from fedlada.training.simulation import Observer, Simulation, TrainingDiverged
from fedlada.workbench.campaign.request import Goal
from fedlada.workbench.ending import SIGNALS, held_back, let_through, when_asked_to_end
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.failures import show_traceback, told
from fedlada.workbench.progress import Course, Display, display_for
from fedlada.workbench.words import asked_of_a_full_gpu, show_warnings_as_lines

FOR_THE_PARENT = tuple(number for number in SIGNALS if number != signal.SIGTERM)
"""Signals that a terminal sends to workers too; the parent decides what they do."""


@dataclass(frozen=True)
class Job:
    """One run: its label, configuration, folder, and the last round that is needed (by default its end)."""

    label: str
    config: dict[str, Any]
    folder: Path
    goals: tuple[Goal, ...] = ()
    discards: bool = False
    """Whether to delete its checkpoints and model as soon as it is complete: they can fill a disk."""

    @property
    def num_rounds(self) -> int:
        """Its last round at most."""
        return max((goal.rounds for goal in self.goals), default=int(self.config["rounds"]))

    @property
    def cost(self) -> float:
        """The rough cost of a round relative to other jobs: client work in epochs or steps."""
        return float(self.config["cohort_size"] * (self.config["local_steps"] or self.config["local_epochs"]))


def run_jobs(
    jobs: Sequence[Job],
    *,
    num_processes: int | None = None,
    quiet: bool = False,
    deadline: float | None = None,
    go_on: str = "",
) -> list[str]:
    """Run all; returns for each the reason why it failed, or nothing. Ctrl-C saves every run and ends.

    At the deadline (of `time.time()`) every run is saved too. `go_on` is what to say to whoever interrupts.
    """
    on_gpu = torch.cuda.is_available() and any(job.config["device"] != "cpu" for job in jobs)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max((job.config["threads"] for job in jobs), default=1)  # each run sets its own
    workers = min(len(jobs), num_processes or (1 if on_gpu else max(1, num_cores // threads)))
    if on_gpu:
        threads = max(1, num_cores // workers)
    display = display_for([Course(job.label, job.num_rounds, job.cost) for job in jobs], quiet=quiet)
    way = go_on or f"the same command with --out {jobs[0].folder.parent} resumes it"
    try:
        if workers == 1:  # a second process would only cost its start
            return _run_here(jobs, display, deadline, way)
        return _run_in_processes(jobs, display, deadline, workers, threads, way)
    finally:
        display.close()


def _run_here(jobs: Sequence[Job], display: Display, deadline: float | None, way: str) -> list[str]:
    at_once = SimpleNamespace(put=lambda news: display.update(*news))
    channel = _Channel(at_once, threading.Event(), deadline)

    def interrupt(*_: object) -> None:
        if channel.stop.is_set():
            raise KeyboardInterrupt
        channel.stop.set()
        print(f"\nfedlada: saving the run; {way}", file=sys.stderr)

    with when_asked_to_end(interrupt):
        failures = [_work(number, job, channel) for number, job in enumerate(jobs)]
    if channel.stop.is_set():
        raise KeyboardInterrupt
    return failures


def _run_in_processes(
    jobs: Sequence[Job], display: Display, deadline: float | None, workers: int, threads: int, way: str
) -> list[str]:
    context = _context()
    news: Any = context.Queue()
    stop = context.Event()
    with (
        _environment("OMP_NUM_THREADS", str(threads)),
        ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_start_worker,
            initargs=(_Channel(news, stop, deadline), threads),
        ) as pool,
        when_asked_to_end(signal.default_int_handler),
    ):
        futures: list[Future[str]] = []
        try:
            with held_back(FOR_THE_PARENT):
                futures += [pool.submit(_work_for_parent, number, job) for number, job in enumerate(jobs)]
            _watch(futures, news, display)
        except KeyboardInterrupt:
            stop.set()
            for future in futures:
                future.cancel()
            print(f"\nfedlada: saving every run; {way}", file=sys.stderr)
            raise
    return [_failure(future) for future in futures]


def _context() -> Any:
    """How workers are started: a fork of this process would inherit torch's threads and hang.

    On Linux each is a fork of a process that has done nothing but import, so that the seconds of that are spent once.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for processes started meanwhile: OpenMP reads it before any of our code runs."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _failure(future: Future[str]) -> str:
    try:
        return future.result()
    except BrokenProcessPool:
        return "its process was killed; the same command resumes from the last checkpoint"


def _watch(futures: Sequence[Future[str]], news: Any, display: Display) -> None:
    """Show the workers' progress until all are done."""
    while True:
        is_over = all(future.done() for future in futures)
        try:
            display.update(*news.get(not is_over, 0.2))
        except queue.Empty:
            if is_over:
                return


@dataclass(frozen=True)
class _Channel:
    """A worker's link to its parent: where to report, when to stop."""

    news: Any
    stop: Any
    deadline: float | None

    def is_late(self, seconds: float = 0.0) -> bool:
        """Whether the deadline is less than this many seconds away."""
        return self.deadline is not None and time.time() + seconds >= self.deadline


_channel: _Channel | None = None


def _start_worker(channel: _Channel, threads: int) -> None:
    global _channel
    _channel = channel
    # Whoever started the server of forks, and with whatever settings: only the parent decides. A kill is meant for the
    # one that it is sent to.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN if number in FOR_THE_PARENT else signal.SIG_DFL)
    let_through(FOR_THE_PARENT)
    torch.set_num_threads(threads)
    np.random.seed()  # noqa: NPY002  (forks share a state, from which a user's transforms may draw)
    show_warnings_as_lines()
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A worker whose parent was killed must not hold its folder: what it has done is on disk."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work_for_parent(number: int, job: Job) -> str:
    assert _channel is not None
    failure = _work(number, job, _channel)
    gc.collect()
    torch.cuda.empty_cache()  # free torch's cache for the other processes on this GPU
    return failure


def _work(number: int, job: Job, channel: _Channel) -> str:
    """One run: returns an empty string, or why it failed."""
    if channel.is_late() or channel.stop.is_set():
        return ""
    try:
        experiment = Experiment.from_json(job.config)
        source = _source(*(getattr(experiment.resolved(), name) for name in DATA_FIELDS))
        reporter = _Reporter(number, job.goals, channel)
        experiment.run([reporter], source, out=job.folder)
        if job.discards and (reporter.has_enough or (not job.goals and reporter.is_over)):
            discard_states(job.folder)
    except TrainingDiverged as error:
        # Recorded, so that nobody runs it again.
        if error.result is not None and (job.goals or job.discards):
            write_json(job.folder / DIVERGED_FILE, {"round": len(error.result.history), "why": str(error)})
            if job.discards:
                discard_states(job.folder)
        return str(error)
    except torch.OutOfMemoryError as error:
        show_traceback(error)
        asked = asked_of_a_full_gpu(error)
        return f"{asked}: give the GPU fewer runs at a time (--jobs); the same command resumes from the last checkpoint"
    except Exception as error:  # a user's own model can raise anything, and the other runs go on
        show_traceback(error)
        return told(error)
    return ""


DATA_FIELDS = ("dataset", "data_dir", "augment", "image_size", "crop_size", "standardize", "validation")


@lru_cache(maxsize=1)
def _source(*values: Any) -> Source:
    """The data of a job, cached for the next one: most runs of a campaign share them."""
    return Experiment(**dict(zip(DATA_FIELDS, values, strict=True))).load_data()


class _Reporter(Observer):
    """Reports each round to the parent; ends a run that is complete or out of time."""

    def __init__(self, number: int, goals: tuple[Goal, ...], channel: _Channel) -> None:
        self.number, self.goals, self.channel = number, goals, channel
        self.said, self.slowest, self.has_enough, self.is_over = "", 0.0, False, False

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.num_rounds = num_rounds
        self._tell(simulation)
        self.since = time.monotonic()

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self.said = describe(row)
        self._tell(simulation)
        now = time.monotonic()
        self.slowest, self.since = max(self.slowest, now - self.since), now
        if self.channel.stop.is_set():
            simulation.pause("asked to stop")
        elif self.channel.is_late(self.slowest):
            simulation.pause("the time is over")

    def _tell(self, simulation: Simulation) -> None:
        history = simulation.history
        self.has_enough = bool(self.goals) and all(goal.end_in(history) is not None for goal in self.goals)
        if self.has_enough:  # a pause: do not evaluate a round that a longer run would not evaluate
            simulation.pause("all that was needed is there")
        self.is_over = self.has_enough or simulation.round >= self.num_rounds
        self.channel.news.put((self.number, simulation.round, self.said, self.is_over))
