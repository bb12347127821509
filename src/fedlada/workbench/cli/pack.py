"""`fedlada pack`: runs as one small file."""

from __future__ import annotations

from pathlib import Path

import click

from fedlada.training.shown import plural
from fedlada.workbench.campaign.archive import Archive, read_archive
from fedlada.workbench.campaign.archived_run import ArchivedRun
from fedlada.workbench.campaign.store import runs_in
from fedlada.workbench.cli.output import make_folder
from fedlada.workbench.cli.values import UserPath


@click.command()
@click.argument("folders", nargs=-1, required=True, type=UserPath())
@click.option(
    "--out",
    required=True,
    type=UserPath(),
    help="The archive file, compressed if its name ends in .gz; runs that it already has stay in it.",
)
@click.option("--made", multiple=True, help="NAME=TEXT: a note for the added runs, such as the date; can be repeated.")
def pack(folders: tuple[Path, ...], out: Path, made: tuple[str, ...]) -> None:
    """Pack the runs of reproductions and sweeps into one small file.

    The archive has configurations, the metrics of evaluated rounds and the traffic, but no checkpoints. The option
    --merge FILE of other commands makes tables, figures and pages from it. Of two versions of a run the longer is kept.

    \b
    Example:
      fedlada reproduce F1 --scale smoke --out results
      fedlada pack results --out archive.json --made date=2026-11-15 --made hardware=laptop
      fedlada reproduce F1 --scale smoke --merge archive.json --out again
    """
    said = dict(_pair(text) for text in made)
    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out names the archive, as in {out / 'archive.json'}")
    known = read_archive(out) if out.exists() else Archive()
    runs = [ArchivedRun.of_folder(run, said) for folder in folders for run in runs_in(folder)]
    archive = known.with_runs(run for run in runs if any(run.progress))
    make_folder(out.parent)
    archive.write(out)
    print(f"{plural(len(archive.runs), 'run')} in {out}, {out.stat().st_size / 1000:.1f} kB")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"--made must be written like date=2026-11-15, got {text!r}")
    return name.strip(), value.strip()
