"""`client_metrics.jsonl`: per-client metrics, one line for each round in which clients were tested."""

from __future__ import annotations

import json
from pathlib import Path

from fedlada.runs.files import append_text, write_text
from fedlada.training.history import ClientValues

FILE = "client_metrics.jsonl"


def append_values(folder: Path, values: ClientValues) -> None:
    """Add a round's line."""
    append_text(folder / FILE, json.dumps(values, allow_nan=False) + "\n")


def read_values(folder: Path) -> list[ClientValues]:
    """The lines in order, up to the first truncated one."""
    found: list[ClientValues] = []
    try:
        lines = (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            break
        if not isinstance(values, dict) or not isinstance(values.get("round"), int):
            break
        found.append(values)
    return found


def forget_after(folder: Path, round: int) -> ClientValues:
    """Drop the lines of rounds that will be run again; returns the last remaining line."""
    if not (folder / FILE).exists():
        return {}
    stay = [values for values in read_values(folder) if values["round"] <= round]
    write_text(folder / FILE, "".join(json.dumps(values) + "\n" for values in stay))
    return stay[-1] if stay else {}
