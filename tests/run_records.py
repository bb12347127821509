"""Runs that never ran: rows, histories and records made by hand."""

from __future__ import annotations

from fedlada.training.history import History
from fedlada.workbench.report.page import RunRecord


def history(*accuracies):
    """Rounds with these test accuracies; None where nothing was evaluated."""
    rows = [{"round": number, "test_accuracy": value} for number, value in enumerate(accuracies, start=1)]
    return History(rows)


def row(round, **values):
    usual = {"lr": 0.1, "train_loss": 1 / round, "drift": 0.5, "bytes_up": 1e6, "bytes_down": 2e6, "seconds": 0.5}
    return {"round": round, **usual, "clients": [round % 3], "lost": [], "refused": [], "idle": [], **values}


def record(num_rounds=6, *, group="fedavg", seed=0, every=2, **changes):
    rows = [row(n, **({"test_accuracy": n / 100} if n % every == 0 else {})) for n in range(1, num_rounds + 1)]
    return RunRecord(
        **{
            "label": f"{group}, seed {seed}",
            "group": group,
            "config": {"method": group, "seed": seed, "rounds": num_rounds, "dataset": "digits", "target": 0.04},
            "rows": rows,
            "command": f"fedlada run --method {group}",
            "labels_per_client": [[3, 0], [1, 4], [0, 2]],
            **changes,
        }
    )
