"""An archive: many runs as one small text file, from which tables and pages can be regenerated anywhere."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedlada import __version__
from fedlada.data.limits import ALWAYS_READ
from fedlada.runs.archived import is_archived
from fedlada.runs.files import write_atomic, write_text
from fedlada.training.history import History
from fedlada.workbench.campaign.archived_run import ArchivedRun, defaults
from fedlada.workbench.campaign.identity import digest, unnamed_data
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.campaign.store import Adopted, RunStore
from fedlada.workbench.experiment import Experiment

FORMAT = 1
"""Format version, incremented when older versions can no longer read an archive."""
ALIKE = ("dataset", "image_size", "method", "model", "seed")
"""Fields that distinguish most runs, and whether their data can be read."""


@dataclass(frozen=True, eq=False)
class Archive:
    """Runs, each with a note of where and when it was made."""

    runs: Sequence[ArchivedRun] = ()

    def with_runs(self, runs: Iterable[ArchivedRun]) -> Archive:
        """Add these runs: of two equal ones the longer is kept, or else the added one."""
        best = {run.identity: run for run in self.runs}
        for run in runs:
            known = best.get(run.identity)
            if known is None or _replaces(run, known):
                best[run.identity] = run
        return Archive(tuple(best.values()))

    def write(self, path: Path) -> None:
        """One line for each column of each run, always in the same order; compressed if the name ends in .gz."""
        # Many runs share their origin: it is written once, and each run has its number.
        origins = {run.origin: dict(run.made) for run in sorted(self.runs, key=lambda run: run.origin)}
        numbers = {origin: number for number, origin in enumerate(origins)}
        head = {"format": FORMAT, "fedlada": __version__, "made": list(origins.values()), "defaults": defaults()}
        runs = sorted(self.runs, key=lambda run: run.place)
        bodies = ",\n".join("{" + _lines(run.to_json(numbers[run.origin])) + "}" for run in runs)
        text = "{" + _lines(head) + ',\n"runs":[\n' + bodies + "\n]}\n"
        if _is_compressed(path):
            compressed = gzip.compress(text.encode(), mtime=0)
            write_atomic(path, lambda beside: beside.write_bytes(compressed))
        else:
            write_text(path, text)


def read_archive(path: Path) -> Archive:
    """Read an archive from a file."""
    try:
        stored = json.loads(_content(path))
    except (OSError, ValueError, RecursionError, EOFError, zlib.error) as error:
        raise ValueError(f"the archive {path} cannot be read: {error}") from None
    if not isinstance(stored, dict) or not isinstance(stored.get("format"), int) or "runs" not in stored:
        raise ValueError(f"{path} is not an archive of runs: name a file that `fedlada pack` has written")
    if stored["format"] > FORMAT:
        raise ValueError(f"{path} was written by fedlada {stored.get('fedlada')}, newer than this one: upgrade")
    runs: list[ArchivedRun] = []
    try:
        origins = [{str(name): str(value) for name, value in made.items()} for made in stored["made"]]
        runs.extend(ArchivedRun.from_json(run, stored["defaults"], origins) for run in stored["runs"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"the archive {path} is damaged at its run {len(runs) + 1}: {reason}") from None
    return Archive(runs)


def _is_compressed(path: Path) -> bool:
    return path.suffix == ".gz"


def _content(path: Path) -> bytes:
    if not _is_compressed(path):
        return path.read_bytes()
    with gzip.open(path) as file:
        content = file.read(ALWAYS_READ + 1)
    if len(content) > ALWAYS_READ:
        raise ValueError(f"unpacked it has more than {ALWAYS_READ / 1e9:g} GB")
    return content


def adopt_archive(store: RunStore, path: Path, requests: Sequence[Request]) -> Adopted:
    """Unpack those runs of an archive into a store that are needed and longer than the store's own."""
    archive = read_archive(path)
    needed: dict[str, list[Request]] = {}
    data_dirs: dict[tuple[Any, ...], dict[str | None, None]] = {}
    for request in requests:
        full = request.experiment.resolved()
        needed.setdefault(digest(request.experiment), []).append(request)
        data_dirs.setdefault(tuple(getattr(full, name) for name in ALIKE), {})[full.data_dir] = None
    found, taken = set(), set()
    with TemporaryDirectory() as place:
        for number, run in enumerate(archive.runs):
            # Build only runs that look like needed ones: building reads their data.
            alike = data_dirs.get(tuple(run.config[name] for name in ALIKE), ())
            for name, experiment in _by_digest(run, alike, path).items():
                if name not in needed:
                    continue
                found.add(name)
                # A run restarted because it needs more rounds than the archive has must not be replaced by it again.
                ours = store.folder / name
                if _settles(run, needed[name]) or not ours.exists() or is_archived(ours):
                    folder = Path(place) / str(number) / name
                    run.write(folder, experiment)
                    taken |= {name} if store.take(folder) else set()
    return Adopted(len(archive.runs), frozenset(found), frozenset(taken))


def _replaces(run: ArchivedRun, known: ArchivedRun) -> bool:
    """Whether to keep this one of two versions of a run."""
    if run.progress != known.progress:
        return run.progress > known.progress
    # The same run packed again: its note stays.
    return not known.made or run.to_json(0) != known.to_json(0)


def _by_digest(run: ArchivedRun, data_dirs: Iterable[str | None], path: Path) -> dict[str, Experiment]:
    """The run's experiments with the data of these folders, if these are the data that it was run on."""
    try:
        experiments = [Experiment.from_json(run.config, data_dir=place) for place in data_dirs]
    except ValueError as error:
        raise ValueError(f"a run in the archive {path} cannot be read: {error}") from None
    return {digest(one): one for one in experiments if unnamed_data(one) == run.data}


def _settles(run: ArchivedRun, requests: Iterable[Request]) -> bool:
    history = History(run.rows())
    return run.diverged is not None or all(request.goal.end_in(history) is not None for request in requests)


def _lines(values: Mapping[str, Any]) -> str:
    write = partial(json.dumps, sort_keys=True, allow_nan=False, separators=(",", ":"))
    return ",\n".join(f"{json.dumps(name)}:{write(value)}" for name, value in values.items())
