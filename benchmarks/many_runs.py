"""Shared by the benchmarks that compare many runs of the paper's setting: runs, their identity, pages of tables."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Collection, Mapping
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


def write_between(page: Path, marked: tuple[str, str], text: str) -> None:
    """Put text between the marks of a page."""
    begin, end = marked
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def options(
    about: str | None, out: str, archive: Path, methods: Collection[str], jobs: int = 4
) -> argparse.ArgumentParser:
    """The flags of a benchmark that lists its runs, makes them, and makes its page of an archive."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "table"))
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=jobs, help="runs at a time")
    parser.add_argument("--only", action="append", choices=tuple(methods), help="a method; can be repeated")
    parser.add_argument("--minutes", type=float, help="after which runs are saved where they are")
    parser.add_argument("--trial", action="store_true", help="a small model on the digits")
    parser.add_argument("--archive", type=Path, default=archive)
    parser.add_argument("--write", action="store_true", help="table: put them into the page")
    return parser
