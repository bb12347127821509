"""Rounds and gigabytes to any accuracy, and accuracies in any round, of stored runs; one line for all seeds.

    python benchmarks/rounds_to.py FOLDER... [--to 0.4,0.45,0.5] [--at 150,300] [--until 450] [--metric test_accuracy]
    python benchmarks/rounds_to.py FOLDER... --over 905-1000    # the mean over these rounds, the lowest and the highest

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

from fedlada.runs.config import is_experiment, read_config
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.workbench.campaign.identity import DECIDES_NOTHING
from fedlada.workbench.report.table import NEVER, Table, spread
from fedlada.workbench.words import in_words

NOT_COMPARED = DECIDES_NOTHING | {"seed", "device", "fedlada"}


def settings(config: dict[str, Any]) -> dict[str, Any]:
    flat = {**config, **config["hyper"]}
    return {name: value for name, value in flat.items() if name not in NOT_COMPARED and not isinstance(value, dict)}


def numbers(kind: type) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(word) for word in text.split(",")]

    return parse


def over_seeds(values: Sequence[float | None], digits: int) -> str:
    known = tuple(value for value in values if value is not None)
    text = spread(known, f".{digits}f")
    if len(known) == len(values):
        return text
    return f"{NEVER} ({len(known)} of {len(values)}: {text})" if known else NEVER


def varied_in(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The settings that tell these runs apart; what one method has and another lacks follows from the method."""
    found = []
    for name in dict.fromkeys(name for one in configs for name in one):
        having = [one for one in configs if name in one]
        lacking = {one["method"] for one in configs if name not in one}
        if len({str(one[name]) for one in having}) > 1 or lacking & {one["method"] for one in having}:
            found.append(name)
    return found


def between(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"rounds must be written like 905-1000, got {text!r}")
    return range(int(first), int(last) + 1)


def values_in(history: History, rounds: Sequence[int], metric: str) -> list[float]:
    """Accuracies in percent, losses as they are."""
    scale = 100 if metric.endswith("accuracy") else 1
    return [scale * value for number, value in zip(*history.measured(metric), strict=True) if number in rounds]


def value_in(history: History, number: int, metric: str) -> float | None:
    return next(iter(values_in(history, [number], metric)), None)


def over_rounds(histories: Sequence[History], rounds: range, metric: str) -> str:
    """The mean over the rounds of each seed, and the lowest and the highest of all; nothing if one went less far."""
    values, digits = [values_in(one, rounds, metric) for one in histories], 1 if metric.endswith("accuracy") else 3
    if min(len(one) for one in histories) < rounds[-1] or not all(values):
        return "-"
    lowest, highest = min(map(min, values)), max(map(max, values))
    means = spread([sum(one) / len(one) for one in values], f".{digits}f")
    return f"{means} ({lowest:.{digits}f} to {highest:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--to", type=numbers(float), default=[], help="accuracies, between 0 and 1")
    parser.add_argument("--at", type=numbers(int), default=[], help="rounds")
    parser.add_argument("--over", type=between, help="rounds, as 905-1000")
    parser.add_argument("--until", type=int, help="leave out later rounds")
    parser.add_argument("--metric", default="test_accuracy")
    given = parser.parse_args()
    targets, rounds, is_accuracy = given.to, given.at, given.metric.endswith("accuracy")
    groups: dict[str, list[History]] = defaultdict(list)
    same: dict[str, dict[str, Any]] = {}
    seen: set[tuple[str, int]] = set()
    # A run that several folders have counts once.
    for folder in sorted({path.parent for one in given.folders for path in one.rglob("config.json")}):
        stored = read_config(folder)
        if not is_experiment(stored):
            continue
        config, history = settings(stored), History(read_rows(folder / "metrics.jsonl")[: given.until])
        key = json.dumps(config, sort_keys=True)
        if history.best(given.metric) is not None and (key, stored["seed"]) not in seen:
            seen.add((key, stored["seed"]))
            groups[key].append(history)
            same[key] = config
    if not groups:
        parser.error(f"no run in these folders has a {given.metric}")
    varied = varied_in(list(same.values()))
    lines = []
    for key, histories in groups.items():
        line = [in_words({name: same[key][name] for name in varied if name in same[key]}) or "all", str(len(histories))]
        for target in targets:
            line.append(over_seeds([one.rounds_to(target, given.metric) for one in histories], 1))
            bytes_to = [one.bytes_to(target, given.metric) for one in histories]
            line.append(over_seeds([None if one is None else one / 1e9 for one in bytes_to], 1))
        digits = 1 if is_accuracy else 3
        line += [over_seeds([value_in(one, number, given.metric) for one in histories], digits) for number in rounds]
        line += [over_rounds(histories, given.over, given.metric)] if given.over else []
        if is_accuracy:
            line.append(over_seeds([100 * max(one.measured(given.metric)[1]) for one in histories], 1))
        lines.append(tuple(line))
    columns = ["runs", "seeds", *(text for one in targets for text in (f"rounds to {one:.4g}", "GB"))]
    columns += [f"{'% ' if is_accuracy else ''}in round {number}" for number in rounds]
    columns += [f"over rounds {given.over[0]} to {given.over[-1]}"] if given.over else []
    columns += ["best %"] if is_accuracy else []
    print(Table(given.metric.replace("_", " "), tuple(columns), tuple(sorted(lines)), ()).to_markdown())


if __name__ == "__main__":
    main()
