"""The run folder as an observer of its simulation: configuration, metrics, checkpoints, the final model."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from safetensors.torch import save_file
from torch import Tensor, nn

from fedlada.data.paths import user_path
from fedlada.engines.engine import RAN_BY
from fedlada.methods.validation import count, positive
from fedlada.models.flat import plain_state
from fedlada.runs import archived, client_metrics
from fedlada.runs.aside import METRICS, MODEL, keep_aside, only_results_left
from fedlada.runs.checkpoints import Checkpoint, Checkpoints, DamagedCheckpoint
from fedlada.runs.clients import refuse_other_data, write_clients
from fedlada.runs.code import CODE, changed, code_of
from fedlada.runs.config import (
    EVALUATED_ON,
    completed,
    describe,
    is_experiment,
    read_config,
    refuse_another,
    refuse_other_test,
    refuse_other_than_experiment,
)
from fedlada.runs.files import make_durable, read_object, write_atomic, write_json
from fedlada.runs.metrics import append_row, read_rows, write_rows
from fedlada.training.history import Row
from fedlada.training.shown import plural
from fedlada.training.simulation import Observer, Simulation
from fedlada.training.target import column_of, is_better, is_same_judge, judged_by

DISCARDED = "checkpoints-discarded"
"""Marks a finished run whose checkpoints were removed: its metrics must not be overwritten."""
REPEATED = "repeated.json"
"""Counts the rounds of a private run that were released twice."""


class RunFolder(Observer):
    """Writes a run folder and resumes from its newest intact checkpoint if there is one.

    `config` is any JSON value, by default a description of a simulation made from Python; a folder that holds another
    configuration is refused. `digests` adds to a given one what only the simulation tells. `upgrade` turns a stored
    configuration of an older version into one of this version.
    """

    def __init__(
        self,
        path: str | Path,
        config: dict[str, Any] | None = None,
        *,
        checkpoint_every: int = 10,
        checkpoint_minutes: float | None = None,
        keep: int = 2,
        digests: Callable[[Simulation], dict[str, Any]] = lambda _: {},
        upgrade: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        warn: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        count("checkpoint_every", checkpoint_every)
        count("keep", keep)
        if checkpoint_minutes is not None:
            positive("checkpoint_minutes", checkpoint_minutes)
        self.path = user_path("out", path)
        self.config = config
        self.checkpoint_every = checkpoint_every
        self.checkpoint_seconds = math.inf if checkpoint_minutes is None else 60 * checkpoint_minutes
        self.digests = digests
        self.upgrade = upgrade
        self.warn = warn
        self.checkpoints = Checkpoints(self.path / "checkpoints", keep)
        self._best: float | None = None
        self._judged_by: str | None = None
        self._new_best: tuple[Tensor, Row, str] | None = None
        self._lock = FileLock(self.path / ".lock")

    @property
    def metrics_path(self) -> Path:
        """Path of the metrics, one line per round."""
        return self.path / METRICS

    def on_start(self, simulation: Simulation, num_rounds: int) -> None:
        self._open()
        try:
            config = self._checked_config(simulation, num_rounds)
            self._warn_of_threads(config, simulation)
            self._warn_of_engine(config[RAN_BY]["engine"])
            config[RAN_BY][CODE] = self._checked_code(simulation)
            write_json(self.path / "config.json", config)
            self._resume(simulation)
            write_clients(self.path, simulation)
        except BaseException:
            self._lock.release()
            raise
        if simulation.round < num_rounds:
            # A model from an earlier end of this run must not be taken for the one in training.
            (self.path / MODEL).unlink(missing_ok=True)
        if simulation.round > num_rounds:
            simulation.stop(f"the folder already holds {plural(simulation.round, 'round')}")
        self._saved, self._saved_at = simulation.round, time.monotonic()

    def on_round(self, simulation: Simulation, row: Row) -> None:
        if self._num_lines == simulation.round:  # its line was written before the row was complete
            self._num_lines -= 1
            write_rows(self.metrics_path, simulation.history.rows[: self._num_lines])
            client_metrics.forget_after(self.path, self._num_lines)
            self._saved = min(self._saved, self._num_lines)
        self._append(simulation)
        is_late = time.monotonic() - self._saved_at >= self.checkpoint_seconds
        if is_late or simulation.round % self.checkpoint_every == 0:
            self.save(simulation)

    def on_end(self, simulation: Simulation) -> None:
        try:
            # An error during a round leaves the state of the round before it, which is worth saving too.
            if self._lock.is_locked and simulation.round > self._saved:
                self.save(simulation)
            if self._lock.is_locked and simulation.stopped and simulation.round:
                export(simulation.engine.model(simulation.server.params), self.path / MODEL)
        finally:
            self._lock.release()

    def save(self, simulation: Simulation) -> None:
        """Write a checkpoint now."""
        self._append(simulation)
        make_durable(self.metrics_path)
        if (tested := self.path / client_metrics.FILE).exists():
            make_durable(tested)
        if self._new_best is not None:
            params, row, metric = self._new_best
            self.checkpoints.save_best(params, row["round"], metric, row[column_of(metric)])
            self._new_best = None
        others = simulation.engine.method.other_models(simulation.server)
        self.checkpoints.save(Checkpoint(simulation.round, simulation.server, simulation.kept, others))
        self._saved, self._saved_at = simulation.round, time.monotonic()

    def _append(self, simulation: Simulation) -> None:
        """Add the missing lines, including that of a round whose callback raised an error."""
        for row in simulation.history[self._num_lines :]:
            append_row(self.metrics_path, row)
            self._num_lines += 1
            if row["round"] == simulation.round:
                self._note(simulation, row)

    def _note(self, simulation: Simulation, row: Row) -> None:
        """The metrics of each client after the newest round, and its model if it is the best so far."""
        if simulation.measures.by_client.get("round") == row["round"]:
            client_metrics.append_values(self.path, simulation.measures.by_client)
        metric = simulation.best or self._judged_by or judged_by(row)
        value = row.get(column_of(metric))
        # Of personal parameters no model is everybody's: one is kept where it is asked for.
        is_kept = simulation.best is not None or simulation.engine.method.personal is None
        if value is not None and is_kept and (self._best is None or is_better(metric, value, self._best)):
            self._best = value
            self._judged_by = metric
            self._new_best = (simulation.measures.judged_params(metric, row, simulation.server), row, metric)

    def _open(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"another process is writing the run folder {self.path}: wait for it or choose another"
            ) from None
        except OSError as error:
            raise ValueError(f"the run folder {self.path} cannot be written: {error.strerror or error}") from None

    def check(self, simulation: Simulation, num_rounds: int) -> None:
        """Refuse a folder that cannot be written or holds another run, before anything is waited for."""
        self._open()
        try:
            self._checked_config(simulation, num_rounds)
        finally:
            self._lock.release()

    def _checked_config(self, simulation: Simulation, num_rounds: int) -> dict[str, Any]:
        """The configuration to store; refuses a folder that holds another run."""
        config = {**self.config, **self.digests(simulation)} if self.config else describe(simulation)
        config = json.loads(json.dumps(config, default=_plain_number))  # so that it compares equal to a stored one
        path = self.path / "config.json"
        if path.exists():
            if is_experiment(config):
                refuse_other_than_experiment(self.path)
            stored = self.upgrade(completed(read_config(self.path), config))
            refuse_another(self.path, stored, config)
            refuse_other_test(self.path, stored, config)
            if EVALUATED_ON in stored:  # also where this part of the run has no test data
                config[EVALUATED_ON] = {**stored[EVALUATED_ON], **config.get(EVALUATED_ON, {})}
            if "rounds" in stored:  # a smaller number of rounds must not shorten the stored one
                config["rounds"] = max(stored["rounds"], config["rounds"])
        elif self.metrics_path.exists():
            raise ValueError(f"{self.path} holds metrics but no config.json: choose another folder")
        refuse_other_data(self.path, simulation)
        rows = read_rows(self.metrics_path)  # damaged ones are refused before anything is written
        self._refuse_another_best(simulation, rows)
        if only_results_left(self.path, len(rows), num_rounds):
            model = f" and {MODEL}" if (self.path / MODEL).exists() else ""
            raise ValueError(
                f"the run in {self.path} is finished and its checkpoints are gone: its {plural(len(rows), 'round')}"
                f"{model} can still be read; give more rounds to train it anew, or choose another folder"
            )
        if self.config is None and len(rows) > num_rounds:  # others store how far they were to go
            raise ValueError(
                f"{self.path} has {len(rows)} rounds, more than rounds={num_rounds}: give as many or more, or take "
                "another folder"
            )
        return {**config, RAN_BY: ran_by(simulation)}

    def _checked_code(self, simulation: Simulation) -> dict[str, str]:
        """The digests of the user's code with which the run began; warns where it is another now."""
        stored, now = self._ran_by().get(CODE), code_of(simulation)
        if others := changed(stored, now):
            self.warn(
                f"the code of {' and '.join(f'`{name}`' for name in others)} has changed since the run in {self.path} "
                "began: its stored rounds are of the old code; choose another folder to train anew"
            )
        return stored if isinstance(stored, dict) and stored else now

    def _ran_by(self) -> dict[str, Any]:
        """The engine and code of the stored rounds; empty where a run starts over."""
        about = read_config(self.path).get(RAN_BY) if self.checkpoints.rounds() else None
        return about if isinstance(about, dict) else {}

    def _warn_of_engine(self, now: str) -> None:
        if (stored := self._ran_by().get("engine")) not in (None, now):
            self.warn(
                f"the rounds in {self.path} were run by the engine {stored!r} and the next ones are by {now!r}: they "
                "agree only up to rounding"
            )

    def _warn_of_threads(self, config: dict[str, Any], simulation: Simulation) -> None:
        is_stored = (self.path / "config.json").exists()
        if not is_stored or "threads" not in config or simulation.engine.device.type != "cpu":
            return
        if "threads" not in read_config(self.path):
            self.warn(
                f"{self.path} was stored by an earlier version, which did not record its number of threads: it "
                f"resumes with {config['threads']}, and its last bits may differ from those of an uninterrupted run"
            )

    def _resume(self, simulation: Simulation) -> None:
        rows = read_rows(self.metrics_path)
        damaged = lines_missing = False
        for round in self.checkpoints.rounds():
            try:
                if len(rows) < round:
                    lines_missing = True
                    raise DamagedCheckpoint(f"{self.metrics_path} has no line for round {len(rows) + 1}")
                fresh = simulation.exchange.init_kept(simulation.server.params)
                state = self.checkpoints.load(round, simulation.server, fresh)
            except DamagedCheckpoint as error:
                damaged = True
                self.warn(f"{error}; the checkpoint before it is used")
                continue
            simulation.round, simulation.server, simulation.kept = state.round, state.server, dict(state.kept)
            simulation.history = simulation.history_of(rows[:round])
            break
        if simulation.privacy is not None:
            repeated = self.path / REPEATED
            known = read_object(repeated, str(repeated), "")["rounds"] if repeated.exists() else 0
            simulation.privacy.resume(rows, simulation.round, known)
            if simulation.privacy.repeated:  # before the lines that record it are gone
                write_json(repeated, {"rounds": simulation.privacy.repeated})
        ended = any((self.path / name).exists() for name in (DISCARDED, MODEL, archived.FILE))
        had_checkpoints = damaged or ended or len(rows) >= self.checkpoint_every
        starts_again = simulation.round == 0 and had_checkpoints
        if starts_again or lines_missing:
            why = "too few intact lines of metrics" if lines_missing else "no intact checkpoint"
            goes_on = "the run starts over" if starts_again else f"it resumes from round {simulation.round}"
            lost = [METRICS, MODEL] if starts_again else [METRICS]  # later rounds are run again, to the same model
            self.warn(f"{self.path} has {why}: {goes_on}{keep_aside(*(self.path / name for name in lost))}")
        self.checkpoints.forget_after(simulation.round)
        for left_behind in self.path.glob(".*.part"):
            left_behind.unlink()
        # Rounds since the checkpoint will be run again, to the same bits: each has exactly one line in the end.
        write_rows(self.metrics_path, rows[: simulation.round])
        simulation.measures.by_client = client_metrics.forget_after(self.path, simulation.round)
        if simulation.round == 0:  # from here on every round is complete
            (self.path / archived.FILE).unlink(missing_ok=True)
            (self.path / DISCARDED).unlink(missing_ok=True)
        self._num_lines = simulation.round
        # A best round after the checkpoint will be run again too, so only the value before it counts here.
        metric = simulation.best or _first_judge(simulation.history)
        if metric is None or self.checkpoints.best_metric() is None or not simulation.history.measured(metric)[1]:
            metric = None
        self._best = None if metric is None else simulation.history.best(metric)
        self._judged_by = metric
        self._new_best = None

    def _refuse_another_best(self, simulation: Simulation, rows: list[Row]) -> None:
        """Refuse another metric than the one by which the best parameters were chosen so far."""
        kept_by, usual = self.checkpoints.best_metric(), _first_judge(rows)
        metric = simulation.best or usual
        if kept_by is not None and metric is not None and not is_same_judge(kept_by, metric):
            way_out = "leave best out" if kept_by == usual else f"set best to {kept_by}"
            raise ValueError(f"{self.path} keeps its best model by {kept_by}, not {metric}: {way_out}")


def _plain_number(value: object) -> object:
    """A NumPy number as a Python one."""
    if isinstance(value, np.generic):
        return value.item()
    raise ValueError(f"a run's configuration holds numbers and text, got {value!r}")


def _first_judge(rows: Sequence[Row]) -> str | None:
    """The metric by which the best model is kept by default, to the run's end; None if no row has one."""
    return next((metric for row in rows if row.get(metric := judged_by(row)) is not None), None)


def ran_by(simulation: Simulation) -> dict[str, Any]:
    """The engine of a run, the reason for that choice, its loss, and what images in bytes were scaled by, if any."""
    engine, inputs = simulation.engine, simulation.inputs
    images = {"images": inputs.to_json()} if inputs.mean else {}
    return {"engine": engine.kind, "reason": engine.why, "loss": engine.loss_name, **images}


def discard_states(folder: Path) -> None:
    """Remove a run's checkpoints and model: its history stays, but it cannot be extended.

    A run that another process is extending is left alone.
    """
    if not (folder / "checkpoints").exists():
        return
    try:
        with FileLock(folder / ".lock", timeout=0):
            (folder / DISCARDED).touch()
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            (folder / MODEL).unlink(missing_ok=True)
    except Timeout:
        return


def export(model: nn.Module, path: Path) -> None:
    """A model's `state_dict` as a safetensors file that plain torch code can load."""
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in plain_state(model).items()}
    write_atomic(path, lambda beside: save_file(tensors, beside))
