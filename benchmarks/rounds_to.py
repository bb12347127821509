"""Rounds and gigabytes to any accuracy, and accuracies in any round, of stored runs; one line for all seeds.

    python benchmarks/rounds_to.py FOLDER... [--to 0.4,0.45,0.5] [--at 150,300] [--until 450] [--metric test_accuracy]

Of runs in the folders of `fedlada run`, `compare`, `sweep` and `reproduce`, and of what these take out of an archive
with `--merge`. A target is reached in the round of the first evaluation at or above it; GB are what travelled up and
down until then, without envelopes; ± is the standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedlada.campaign.over_seeds import NEVER, spread
from fedlada.history import History
from fedlada.report.table import Table
from fedlada.runs.metrics import read_rows
from fedlada.words import in_words

NOT_COMPARED = {"seed", "data_dir", "device", "rounds", "target", "stop_at_target", "fedlada", "format"}


def settings(config: dict[str, Any]) -> dict[str, Any]:
    flat = {**config, **config["hyper"]}
    return {name: value for name, value in flat.items() if name not in NOT_COMPARED and not isinstance(value, dict)}


def numbers(kind: type) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(word) for word in text.split(",")]

    return parse


def over_seeds(values: Sequence[float | None], digits: int) -> str:
    known = tuple(value for value in values if value is not None)
    if len(known) == len(values):
        return spread(known, digits)
    return f"{NEVER} ({len(known)} of {len(values)}: {spread(known, digits)})" if known else NEVER


def accuracy_in(history: History, number: int, metric: str) -> float | None:
    rounds, values = history.measured(metric)
    return 100 * values[rounds.index(number)] if number in rounds else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--to", type=numbers(float), default=[], help="accuracies, between 0 and 1")
    parser.add_argument("--at", type=numbers(int), default=[], help="rounds")
    parser.add_argument("--until", type=int, help="leave out later rounds")
    parser.add_argument("--metric", default="test_accuracy")
    given = parser.parse_args()
    targets, rounds = given.to, given.at
    groups: dict[str, list[History]] = defaultdict(list)
    same: dict[str, dict[str, Any]] = {}
    # A run that several folders have counts once.
    for folder in {
        path.parent.name: path.parent for one in given.folders for path in one.rglob("config.json")
    }.values():
        config = settings(json.loads((folder / "config.json").read_text()))
        key = json.dumps(config, sort_keys=True)
        history = History(read_rows(folder / "metrics.jsonl")[: given.until])
        if history.best(given.metric) is not None:
            groups[key].append(history)
            same[key] = config
    if not groups:
        parser.error(f"no run in these folders has a {given.metric}")
    varied = [name for name in next(iter(same.values())) if len({str(one.get(name)) for one in same.values()}) > 1]
    lines = []
    for key, histories in groups.items():
        line = [in_words({name: same[key][name] for name in varied if name in same[key]}) or "all", str(len(histories))]
        for target in targets:
            line.append(over_seeds([one.rounds_to(target, given.metric) for one in histories], 1))
            bytes_to = [one.bytes_to(target, given.metric) for one in histories]
            line.append(over_seeds([None if one is None else one / 1e9 for one in bytes_to], 1))
        line += [over_seeds([accuracy_in(one, number, given.metric) for one in histories], 1) for number in rounds]
        lines.append(
            (*line, over_seeds([None if (b := one.best(given.metric)) is None else 100 * b for one in histories], 1))
        )
    columns = ["runs", "seeds", *(text for one in targets for text in (f"rounds to {one:.4g}", "GB"))]
    columns += [*(f"% in round {number}" for number in rounds), "best %"]
    print(Table(given.metric.replace("_", " "), tuple(columns), tuple(sorted(lines)), ()).to_markdown())


if __name__ == "__main__":
    main()
