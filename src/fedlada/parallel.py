"""Several runs at a time, each in a process of its own and in its own folder, with one progress display."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedlada.experiment import Experiment
from fedlada.history import Row
from fedlada.observers import Observer, describe
from fedlada.progress import new_bars
from fedlada.simulation import Simulation


@dataclass(frozen=True)
class Job:
    """One run: what to call it, its configuration and its folder."""

    label: str
    config: dict[str, Any]
    folder: Path


def run_jobs(jobs: Sequence[Job], *, num_processes: int | None = None, quiet: bool = False) -> dict[str, str]:
    """Run all; returns the sentences of those that failed, by label. Ctrl-C saves every run and ends."""
    on_gpu = torch.cuda.is_available() and any(job.config["device"] != "cpu" for job in jobs)
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(len(jobs), num_processes or (1 if on_gpu else num_cores))
    num_threads = max(1, num_cores // workers)
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads and hang
    news: Any = context.Queue()
    stop = context.Event()
    display = _display(jobs, quiet)
    with (
        _environment("OMP_NUM_THREADS", str(num_threads)),
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_start_worker, initargs=(news, stop, num_threads)
        ) as pool,
        _terminate_as_interrupt(),
    ):
        with _deaf_to_interrupts():  # inherited by the workers: only the parent decides
            futures = [pool.submit(_work, number, job) for number, job in enumerate(jobs)]
        try:
            _watch(futures, news, display)
        except KeyboardInterrupt:
            stop.set()
            for future in futures:
                future.cancel()
            where = jobs[0].folder.parent
            print(f"\nfedlada: saving every run; the same command with --out {where} goes on", file=sys.stderr)
            raise
        finally:
            display.close()
    return {job.label: why for job, future in zip(jobs, futures, strict=True) if (why := _failure(future))}


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """A polite kill is treated as Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable for the processes started meanwhile: OpenMP reads its own before any code of ours runs there."""
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
        return "its process was killed; the same command goes on from the last checkpoint"


def _watch(futures: Sequence[Future[str]], news: Any, display: Display) -> None:
    """Show what the workers say until all are done."""
    while not all(future.done() for future in futures):
        try:
            display.update(*news.get(timeout=0.2))
        except queue.Empty:
            continue
    while True:
        try:
            display.update(*news.get_nowait())
        except queue.Empty:
            return


_channel: tuple[Any, Any] | None = None


def _start_worker(news: Any, stop: Any, num_threads: int) -> None:
    global _channel
    _channel = (news, stop)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(num_threads)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A worker whose parent was killed must not hold its folder: what it has done is on disk."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(number: int, job: Job) -> str:
    """One run in a worker: returns an empty string, or why it failed."""
    assert _channel is not None
    try:
        Experiment.from_json(job.config).run([_Reporter(number, *_channel)], out=job.folder)
    except Exception as error:  # a user's own model can raise anything, and the other runs go on
        is_sentence = isinstance(error, (ValueError, RuntimeError, OSError))
        return str(error) if is_sentence else f"{type(error).__name__}: {error}"
    return ""


class _Reporter(Observer):
    def __init__(self, number: int, news: Any, stop: Any) -> None:
        self.number, self.news, self.stop = number, news, stop

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self.news.put((self.number, simulation.round, ""))

    def on_round(self, simulation: Simulation, row: Row) -> None:
        self.news.put((self.number, row["round"], describe(row)))
        if self.stop.is_set():
            simulation.pause("stopped from the keyboard")


class Display:
    """Shows nothing."""

    def update(self, number: int, round: int, news: str) -> None:
        """A job has finished a round."""

    def close(self) -> None:
        """No more news."""


class _Lines(Display):
    """One line for each finished run, where standard error is not a terminal."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.done = 0

    def update(self, number: int, round: int, news: str) -> None:
        if round == self.jobs[number].config["rounds"]:
            self.done += 1
            print(f"[{self.done}/{len(self.jobs)}] {self.jobs[number].label}: {news}", file=sys.stderr)


class _Bars(Display):
    """A bar for all runs together, and one for each run at work."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.bars = new_bars()
        rounds = [job.config["rounds"] for job in jobs]
        self.total = self.bars.add_task("all rounds", total=sum(rounds), news="")
        self.tasks = [
            self.bars.add_task(job.label, total=total, news="", visible=False)
            for job, total in zip(jobs, rounds, strict=True)
        ]
        self.rounds = [0] * len(jobs)
        self.bars.start()

    def update(self, number: int, round: int, news: str) -> None:
        self.rounds[number] = round
        running = round < self.jobs[number].config["rounds"]
        self.bars.update(self.tasks[number], completed=round, news=news, visible=running)
        self.bars.update(self.total, completed=sum(self.rounds))

    def close(self) -> None:
        self.bars.stop()


def _display(jobs: Sequence[Job], quiet: bool) -> Display:
    if quiet:
        return Display()
    return _Bars(jobs) if sys.stderr.isatty() else _Lines(jobs)
