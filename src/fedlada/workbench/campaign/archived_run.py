"""A run in an archive: its configuration, the metrics of evaluated rounds, and all bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from decimal import ROUND_05UP, Context, Decimal
from functools import cache
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any

from fedlada import __version__
from fedlada.data.own import is_own_data
from fedlada.data.sources import CONTENT_BY_NAME
from fedlada.engines.engine import RAN_BY
from fedlada.plots.curves import is_number
from fedlada.runs.archived import is_archived, mark_archived, said_of
from fedlada.runs.config import EVALUATED_ON, TRAINED_ON, read_config
from fedlada.runs.diverged import DIVERGED_FILE, diverged_in
from fedlada.runs.files import write_json
from fedlada.runs.metrics import is_evaluated, read_rows, write_rows
from fedlada.runs.parts import PARTS
from fedlada.training.history import Row
from fedlada.training.shown import EVALUATED
from fedlada.workbench.campaign.identity import DECIDES_NOTHING, device_kind, digest, unnamed_data
from fedlada.workbench.experiment import Experiment

DECIMALS = 5
"""Digits of losses and drifts: one more than any table shows."""
DIGITS = 4
"""Least significant digits of a drift, which can be very small."""
EVERY_ROUND = ("bytes_up", "bytes_down", "nd_up", "nd_down")
"""Columns kept for every round."""
AT_EVALUATIONS = ("train_loss", "drift")
"""Columns known for every round, but kept for evaluated rounds only."""
MOST_ROUNDS = 1_000_000
"""Rounds of a run that are read: a short file can ask for any number."""
NOBODY: Row = {"clients": [], "lost": [], "refused": [], "idle": []}
"""Columns that are not kept: which clients took part."""


@dataclass(frozen=True, eq=False)
class ArchivedRun:
    """An archived run."""

    config: Mapping[str, Any]
    """Every field; no `data_dir`, and of the device its kind."""
    num_rounds: int
    seconds: float
    """Of all rounds together."""
    diverged: tuple[int, str] | None
    every_round: Mapping[str, Sequence[float]]
    measured: Mapping[str, Mapping[int, float]]
    """By name and round."""
    data: str | None = None
    """The digest of the data, if their name alone does not identify them."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Where and when it was made."""

    @classmethod
    def of_folder(cls, folder: Path, made: Mapping[str, str]) -> ArchivedRun:
        """The run in a store's folder, as far as it is there; one from an archive keeps its note."""
        config, rows = read_config(folder), read_rows(folder / "metrics.jsonl")
        if is_own_data(name := config.get("dataset")):
            raise ValueError(f"{folder} was run on the data of {name!r}, which an archive cannot identify")
        for name in (RAN_BY, TRAINED_ON, EVALUATED_ON):  # equal for many runs, and not needed to run them again
            config.pop(name, None)
        kept = [row for row in rows if row["round"] == len(rows) or is_evaluated(row)]
        names = sorted({name for row in kept for name in row if name.startswith(EVALUATED) or name in AT_EVALUATIONS})
        kind = _kind_of_device(folder, config)
        return cls(
            config={**defaults(), **config, "data_dir": None, "device": kind},
            num_rounds=len(rows),
            seconds=round(sum(row.get("seconds") or 0.0 for row in rows), 3),
            diverged=diverged_in(folder),
            every_round={name: [row[name] for row in rows] for name in EVERY_ROUND if all(name in row for row in rows)},
            measured={
                name: {row["round"]: shortened(name, row[name]) for row in kept if is_number(row.get(name))}
                for name in names
            },
            data=_unnamed_data(folder, {**config, "device": kind}),
            made=said_of(folder) if is_archived(folder) else dict(made),
        )

    @property
    def progress(self) -> tuple[int, bool]:
        """The number of rounds."""
        return self.num_rounds, self.diverged is not None

    @property
    def identity(self) -> str:
        """Equal for equal runs, whatever version ran them: readers name runs by their own version."""
        decides_nothing = {*DECIDES_NOTHING, "fedlada"}
        if self.config["device"] == "cuda":
            decides_nothing -= {"rounds"}  # short runs may differ there, and only the data tell which are short
        decides = {name: value for name, value in self.config.items() if name not in decides_nothing}
        return _text({**decides, "data": self.data})

    @property
    def place(self) -> tuple[str, str, str, str, int]:
        """Its sort key in a file: data set, method, configuration, data and seed."""
        others = {name: value for name, value in self.config.items() if name != "seed"}
        return self.config["dataset"], self.config["method"], _text(others), self.data or "", self.config["seed"]

    @property
    def origin(self) -> str:
        """Equal for runs with the same note."""
        return _text(self.made)

    def rows(self) -> list[Row]:
        """A row for each round, most of them with their bytes alone; the seconds are spread evenly over the rounds."""
        rows: list[Row] = [{"round": place + 1} for place in range(self.num_rounds)]
        for name, values in self.every_round.items():
            for row, value in zip(rows, values, strict=True):
                row[name] = value
        for name, by_round in self.measured.items():
            for round, value in by_round.items():
                rows[round - 1][name] = value
        evaluated = {round for by_round in self.measured.values() for round in by_round}
        for before, round in pairwise([0, *sorted(evaluated | {self.num_rounds})] if rows else []):
            rows[round - 1]["seconds"] = self.seconds * (round - before) / self.num_rounds
        return [{**row, **NOBODY} for row in rows]

    def write(self, folder: Path, experiment: Experiment) -> None:
        """Write it as a run folder without checkpoints, which can be shown but not resumed."""
        folder.mkdir(parents=True)
        version = self.config["fedlada"]
        write_json(folder / "config.json", {**experiment.to_json(), "fedlada": version})
        write_rows(folder / "metrics.jsonl", self.rows())
        if self.diverged is not None:
            write_json(folder / DIVERGED_FILE, dict(zip(("round", "why"), self.diverged, strict=True)))
        mark_archived(folder, version, self.made)

    def to_json(self, origin: int) -> dict[str, Any]:
        """The written form: the configuration without defaults, the number of its origin, and each column."""
        usual = defaults()
        config = {name: value for name, value in self.config.items() if name not in usual or usual[name] != value}
        stored: dict[str, Any] = {"config": config, "made": origin, "rounds": self.num_rounds, "seconds": self.seconds}
        if self.data is not None:
            stored["data"] = self.data
        if self.diverged is not None:
            stored["diverged"] = list(self.diverged)
        stored |= {name: packed(values) for name, values in self.every_round.items() if values}
        return stored | {name: packed_column(by_round) for name, by_round in self.measured.items() if by_round}

    @classmethod
    def from_json(
        cls, values: Mapping[str, Any], usual: Mapping[str, Any], origins: Sequence[Mapping[str, str]]
    ) -> ArchivedRun:
        """Read a run written by a version with these defaults, in a file with these origins."""
        left = dict(values)
        config, num_rounds, seconds = left.pop("config"), whole(left.pop("rounds")), number(left.pop("seconds"))
        diverged, data, origin = left.pop("diverged", None), left.pop("data", None), whole(left.pop("made"))
        if num_rounds > MOST_ROUNDS:
            raise ValueError(f"it has {num_rounds} rounds, more than the {MOST_ROUNDS} that are read")
        if not isinstance(data, str | None):
            raise ValueError(f"its data are {data!r}")
        if origin >= len(origins):
            raise ValueError(f"it has origin {origin}, and the file has {len(origins)}, counted from 0")
        still_known = {name: value for name, value in usual.items() if name in defaults()}
        run = cls(
            config={**defaults(), **still_known, **config},
            num_rounds=num_rounds,
            seconds=seconds,
            diverged=None if diverged is None else (whole(diverged[0]), str(diverged[1])),
            every_round={name: unpacked(left.pop(name), num_rounds) for name in EVERY_ROUND if name in left},
            measured={name: unpacked_column(own, num_rounds) for name, own in left.items()},
            data=data,
            made=origins[origin],
        )
        for name in ("dataset", "method", "model", "device", "fedlada"):
            if not isinstance(run.config[name], str):
                raise ValueError(f"its {name} is {run.config[name]!r}")
        number(run.config["seed"])
        number(run.config["image_size"] or 0)
        return run


@cache
def defaults() -> dict[str, Any]:
    """The fields of an experiment where none is given."""
    return asdict(Experiment())


def _kind_of_device(folder: Path, config: Mapping[str, Any]) -> str:
    """The kind of device; for "auto", only the run's name tells."""
    if config.get("device") != "auto":
        return device_kind(str(config.get("device")))
    try:
        for kind in ("cpu", "cuda"):
            if digest(Experiment.from_json(config, device=kind), config.get(PARTS, {})) == folder.name:
                return kind
    except (ValueError, OSError):
        pass  # such as missing data
    raise ValueError(
        f"{folder} was run with --device auto, and which device that was is known only where its data are and with "
        "the version that ran it: pack it there"
    )


def _unnamed_data(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The digest of its data, if they are still the same, which only the run's name tells."""
    if config.get("dataset", Experiment.dataset) in CONTENT_BY_NAME:
        return None
    try:
        experiment = Experiment.from_json(config)
        data, name = unnamed_data(experiment), digest(experiment, config.get(PARTS, {}))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{folder} must be packed where its data are, which alone tell what it was run on: {error}"
        ) from None
    if name != folder.name:
        raise ValueError(
            f"{folder} is named by its data and its version, fedlada {config.get('fedlada', '?')}, and those here "
            f"(fedlada {__version__}) give {name}: pack it with the data and the version of the run"
        )
    return data


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def number(value: Any) -> float:
    """A number as a file has it, or an error."""
    if not is_number(value):
        raise ValueError(f"{value!r} is not a number")
    return value


def whole(value: Any) -> int:
    """A whole number from 0, or an error."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def shortened(name: str, value: float) -> float:
    """Losses and drifts to a few digits; all else, accuracies above all, as it is.

    A last digit is never made 0 or 5: to the digits that a table shows, the result is rounded as the value would be.
    """
    if name != "drift" and not name.endswith(("loss", "loss_of_mean")):
        return value
    written = Decimal(repr(value))
    decimals = max(DECIMALS, DIGITS - 1 - written.adjusted()) if name == "drift" else DECIMALS
    return float(written.quantize(Decimal(1).scaleb(-decimals), ROUND_05UP, Context(prec=400)))


def packed(values: Sequence[float]) -> Any:
    """Run-length encoding: one number if all are equal, else pairs of a number and its count."""
    pairs = [[value, len(list(same))] for value, same in groupby(values)]
    return pairs[0][0] if len(pairs) == 1 else pairs


def unpacked(stored: Any, length: int) -> list[float]:
    """Decode the numbers, of which there must be `length`."""
    pairs: Sequence[Any] = [[stored, length]] if is_number(stored) else stored
    if (found := sum(whole(times) for _, times in pairs)) != length:
        raise ValueError(f"there are {found} numbers in the place of {length}")
    return [one for value, times in pairs for one in [number(value)] * times]


def packed_column(by_round: Mapping[int, float]) -> dict[str, Any]:
    """Values and the steps from each round that has one to the next."""
    return {"steps": packed([b - a for a, b in pairwise([0, *by_round])]), "values": list(by_round.values())}


def unpacked_column(stored: Mapping[str, Any], num_rounds: int) -> dict[int, float]:
    """The values by round."""
    values = [number(value) for value in stored["values"]]
    rounds = list(accumulate(whole(step) for step in unpacked(stored["steps"], len(values))))
    if len(set(rounds)) < len(rounds) or any(not 1 <= one <= num_rounds for one in rounds):
        raise ValueError(f"its values are not of rounds 1 to {num_rounds}")
    return dict(zip(rounds, values, strict=True))
