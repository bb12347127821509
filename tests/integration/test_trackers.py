"""Experiment trackers, for real: TensorBoard is tested with the command line; these run without a network."""

from __future__ import annotations

import json
import subprocess
import sys

from command_line import ENVIRONMENT

SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import fedlada
from fedlada import trackers
from tasks import blobs, small_net
x, y = blobs()
result = fedlada.simulate(small_net(), (x, y), test=(x, y), rounds=3, lr=0.01, callbacks=[{observer}])
{after}
"""


def run(observer, after, folder, **environment):
    """In a process of its own, because trackers start threads and services."""
    script = SCRIPT.format(paths=sys.path, observer=observer, after=after)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=folder,
        env={**ENVIRONMENT, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_mlflow(tmp_path):
    after = """
import json, mlflow
run = mlflow.last_active_run()
points = mlflow.MlflowClient().get_metric_history(run.info.run_id, "test_accuracy")
print(json.dumps([[(p.step, p.value) for p in points], [(r["round"], r["test_accuracy"]) for r in result.history]]))
"""
    logged, expected = run(
        "trackers.MLflow(run_name='mine')",
        after,
        tmp_path,
        MLFLOW_TRACKING_URI=f"file://{tmp_path}/mlruns",
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    assert logged == expected


def test_weights_and_biases(tmp_path):
    after = "import json; print(json.dumps(result.history['drift']))"
    observer = "trackers.WeightsAndBiases(mode='offline', project='mine')"
    drifts = run(observer, after, tmp_path, WANDB_SILENT="true")
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    logged = log.read_bytes()
    assert b"test_accuracy" in logged
    assert all(str(drift).encode() in logged for drift in drifts)
