"""Experiment trackers, for real and without a network."""

from __future__ import annotations

import json
import struct
import sys

import pytest

from command_line import warm

SCRIPT = """
import json, sys
sys.path[:0] = {paths!r}
import fedlada
from fedlada import trackers
from tasks import blobs, small_net

x, y = blobs()
def goes_on(simulation, row): pass
def adds(simulation, row): row["added"] = 10.0 * row["round"]
def stops(simulation, row): simulation.stop("enough")
def pauses(simulation, row): simulation.pause("later")
def fails(simulation, row): raise OSError("the disk is full")
def interrupts(simulation, row): raise KeyboardInterrupt

def run(tracker, then, **settings):
    try:
        settings |= dict(rounds=3, lr=0.01, callbacks=[tracker, then])
        return fedlada.simulate(small_net(), (x, y), test=(x, y), **settings).history.rows
    except (KeyboardInterrupt, OSError, ValueError):
        return None

{runs}
"""


def run(runs, folder, **environment):
    """In a process of its own, because trackers start threads and services."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(paths=sys.path, runs=runs))
    done = warm([], program=script, cwd=folder, environments=[environment])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_with_mlflow(runs, folder):
    environment = {"MLFLOW_TRACKING_URI": f"file://{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"}
    return run(f"import mlflow\n{runs}", folder, **environment)


def run_with_wandb(runs, folder):
    made = "def tracker(**own): return trackers.WeightsAndBiases(mode='offline', project='mine', **own)"
    return run(f"{made}\n{runs}", folder, WANDB_SILENT="true")


def wandb_records(folder, name):
    """The records of a W&B run: blocks of 32 KiB of chunks, each with a header of checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    (log,) = folder.glob(f"wandb/offline-run-*-{name}/*.wandb")
    data, place, parts, records = log.read_bytes(), 7, b"", []
    while place < len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last chunk
            records.append(Record.FromString(parts))
            parts = b""
    return records


def wandb_metric(records, name):
    """The values of a metric by round."""
    return {
        record.history.step.num: json.loads(item.value_json)
        for record in records
        for item in record.history.item
        if name in (item.key, *item.nested_key)
    }


def exit_code(records):
    (code,) = [one.exit.exit_code for one in records if one.WhichOneof("record_type") == "exit"]
    return code


def test_mlflow_has_every_column(tmp_path):
    runs = """
def points(name):
    found = mlflow.MlflowClient().get_metric_history(mlflow.last_active_run().info.run_id, name)
    return {point.step: point.value for point in found}

whole = run(trackers.MLflow(run_name="mine"), adds), points("test_accuracy"), points("added")
stopped = run(trackers.MLflow(), stops, eval_every=10), points("test_accuracy")
print(json.dumps([whole, stopped]))
"""
    (rows, accuracies, added), ((row,), last) = run_with_mlflow(runs, tmp_path)
    assert accuracies == {str(row["round"]): row["test_accuracy"] for row in rows}
    assert added == {"1": 10, "2": 20, "3": 30}
    assert last == {"1": row["test_accuracy"]}  # evaluated after the callbacks, because one of them stopped the run


def test_mlflow_has_how_a_run_ended(tmp_path):
    runs = """
def status(then):
    run(trackers.MLflow(), then)
    return mlflow.last_active_run().info.status

print(json.dumps([status(then) for then in (goes_on, fails, interrupts, pauses)]))
"""
    assert run_with_mlflow(runs, tmp_path) == ["FINISHED", "FAILED", "KILLED", "KILLED"]


def test_weights_and_biases_has_every_column(tmp_path):
    runs = """
whole = run(tracker(id="whole"), adds)
stopped = run(tracker(id="stopped"), stops, eval_every=10)
print(json.dumps([whole, stopped]))
"""
    rows, (row,) = run_with_wandb(runs, tmp_path)
    records = wandb_records(tmp_path, "whole")
    for name in ("drift", "test_accuracy", "added"):
        assert wandb_metric(records, name) == {row["round"]: row[name] for row in rows}
    assert wandb_metric(wandb_records(tmp_path, "stopped"), "test_accuracy") == {1: row["test_accuracy"]}


def test_weights_and_biases_has_how_a_run_ended(tmp_path):
    runs = """
run(tracker(id="refused"), goes_on, engine="unknown")
for then in (goes_on, fails, interrupts, pauses):
    run(tracker(id=then.__name__), then)
print(json.dumps(None))
"""
    run_with_wandb(runs, tmp_path)
    assert not list(tmp_path.glob("wandb/*-refused"))  # nothing was started
    codes = {name: exit_code(wandb_records(tmp_path, name)) for name in ("goes_on", "fails", "interrupts", "pauses")}
    assert codes == {"goes_on": 0, "fails": 1, "interrupts": 255, "pauses": 255}


def test_tensorboard_has_every_column(tmp_path):
    runs = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

rows = run(trackers.TensorBoard("events"), stops, eval_every=10)
events = EventAccumulator("events").Reload()
names = {"test_accuracy"} & {*events.Tags()["scalars"]}
print(json.dumps([rows, [(point.step, point.value) for name in names for point in events.Scalars(name)]]))
"""
    (row,), logged = run(runs, tmp_path)
    assert [(step, pytest.approx(value)) for step, value in logged] == [(1, row["test_accuracy"])]
