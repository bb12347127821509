"""Both sides of the app; nothing here takes long to import."""

import time
from pathlib import Path

import numpy as np
import torch
from flwr.serverapp import ServerApp
from torch import nn

from fedlada.flower import MethodStrategy, Replies, client_app

NUM_CLIENTS = 2
SETTINGS = {"combiner": "norm-bound", "batch_size": 6, "local_epochs": 2, "lr": 0.05, "seed": 5}
SHARES = [np.arange(0, 50), np.arange(50, 80)]
AT_WORK = "at work"


def make_model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def samples():
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 80)
    return random.standard_normal((80, 4)).astype(np.float32) + y[:, None], y


def make_method(context):
    return str(context.run_config["method"])  # a name, which both sides and the simulation understand alike


def hold(out: Path) -> Path:
    """A file with a number of rounds: client 0 stops at its work when so many are done, until the file changes."""
    return out.with_name(f"{out.name}-hold")


def wait_if_asked(out: Path) -> None:
    rows = out / "metrics.jsonl"
    rounds = len(rows.read_text().splitlines()) if rows.exists() else 0
    if not hold(out).exists() or hold(out).read_text() != str(rounds):
        return
    hold(out).write_text(AT_WORK)
    end = time.monotonic() + 400
    while hold(out).read_text() == AT_WORK and time.monotonic() < end:
        time.sleep(0.1)


def load(context):
    if context.node_config["partition-id"] == 0:
        wait_if_asked(Path(str(context.run_config["out"])))
    x, y = samples()
    own = SHARES[context.node_config["partition-id"]]
    return x[own], y[own]


client = client_app(make_model, load, method=make_method)
server = ServerApp()


@server.main()
def main(grid, context):
    torch.set_num_threads(1)
    strategy = MethodStrategy(
        make_model,
        make_method(context),
        num_clients=NUM_CLIENTS,
        node_ids=dict(enumerate(map(int, context.run_config["node-ids"].split(",")))),
        test=samples(),
        replies=Replies(time_limit=context.run_config["time-limit"], patience=240.0),
        **SETTINGS,
    )
    strategy.run(grid, context.run_config["rounds"], out=context.run_config["out"], checkpoint_every=1)
