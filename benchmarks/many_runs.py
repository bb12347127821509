"""Shared by the benchmarks that compare many runs of the paper's setting: runs, their identity, pages of tables."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlada.methods.recipes import hyper_parameters
from fedlada.paper.choices import values_of
from fedlada.workbench.campaign.identity import DECIDES_NOTHING
from fedlada.workbench.experiment import Experiment


def as_printed(
    method: str, dataset: str, hyper: Mapping[str, Any], *, kind: type[Experiment] = Experiment, **fields: Any
) -> Experiment:
    """A run with the paper's printed values, but for the given ones; every value is named."""
    printed = values_of("paper", dataset, dataset, method)
    return kind(
        method=method,
        dataset=dataset,
        hyper={**hyper_parameters(method), **printed.hyper, **hyper},
        refill=True,
        checkpoint_every=10**6,
        **{"lr": printed.lr, "lr_decay": printed.lr_decay, **fields},
    )


def folder_name(key: str) -> str:
    """The folder of a run in the form of a store, so that `fedlada pack` finds it."""
    return hashlib.sha256(key.encode()).hexdigest()[:20]


def identity(config: Mapping[str, Any]) -> str:
    """The settings that decide a run, without when it was evaluated and where it ran."""
    left_out = {*DECIDES_NOTHING, "fedlada", "device", "eval_every", "eval_train_every"}
    return json.dumps({name: value for name, value in config.items() if name not in left_out}, sort_keys=True)


def marks(command: str) -> tuple[str, str]:
    """The lines of a page between which the tables of a command stand."""
    return f"<!-- tables: {command} -->", "<!-- end of tables -->"


@dataclass(frozen=True)
class Kept:
    """The committed runs of a benchmark, and the page with their tables."""

    archive: Path
    page: Path
    marks: tuple[str, str]

    @classmethod
    def at(cls, archive: str, page: str, command: str) -> Kept:
        root = Path(__file__).parents[1]
        return cls(root / "benchmarks" / "results" / archive, root / "docs" / "results" / page, marks(command))

    def holds(self, text: str) -> bool:
        return text in self.page.read_text(encoding="utf-8")

    def write(self, text: str) -> None:
        write_between(self.page, self.marks, text)


def write_between(page: Path, marked: tuple[str, str], text: str) -> None:
    """Put text between the marks of a page."""
    begin, end = marked
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def options(
    about: str | None, out: str, methods: Collection[str], datasets: Collection[str]
) -> argparse.ArgumentParser:
    """The flags of a benchmark that lists its runs, makes them, and makes its page of an archive."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "table"))
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--only", action="append", choices=tuple(methods), help="a method; can be repeated")
    parser.add_argument("--minutes", type=float, help="after which runs are saved where they are")
    parser.add_argument("--trial", action="store_true", help="a small model on the digits")
    parser.add_argument("--dataset", choices=tuple(datasets), default="cifar100")
    parser.add_argument("--archive", type=Path, help="by default the committed one of the data set")
    parser.add_argument("--write", action="store_true", help="table: put them into the page")
    return parser


def show(
    tables: Callable[[Path, str], str],
    kept: Mapping[str, Kept],
    given: argparse.Namespace,
    parser: argparse.ArgumentParser,
) -> None:
    """Print the tables of a data set, and put them into its page if asked to."""
    own = kept.get(given.dataset)
    if own is None and (given.write or given.archive is None):
        parser.error(f"{given.dataset} has no committed runs and no page: give --archive, without --write")
    text = tables(given.archive or own.archive, given.dataset)
    print(text)
    if given.write:
        own.write(text)
