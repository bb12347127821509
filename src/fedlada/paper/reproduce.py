"""`fedlada reproduce`: a table or figure of the paper in one command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from fedlada.data.paths import user_path
from fedlada.engines.threads import cpu_threads
from fedlada.methods.validation import nearest
from fedlada.paper.choices import PRESETS
from fedlada.paper.describe import hyper_parameter_table, setting_notes
from fedlada.paper.published import DATASETS, NAMES
from fedlada.paper.scales import SCALES
from fedlada.paper.setting import Setting
from fedlada.paper.target import Shown, Target, group
from fedlada.paper.targets import OF_THE_PAPER, TARGETS
from fedlada.workbench.campaign.request import Outcome, Request
from fedlada.workbench.campaign.run import Work, carry_out
from fedlada.workbench.campaign.store import RunStore
from fedlada.workbench.campaign.write import announce, still_open, write_folder
from fedlada.workbench.cli.campaign import campaign_flags, read_data, say_and_end, take_over, work_of
from fedlada.workbench.cli.output import print_tables
from fedlada.workbench.cli.values import NearestChoice, UserPath, Words
from fedlada.workbench.report.command import command_line
from fedlada.workbench.words import as_file_name

HOME = Path("runs") / "reproduce"
"""Where everything goes by default: all targets share the runs there."""


class TargetNames(click.ParamType[list[str]]):
    """Names of targets separated by commas, in any case; "all" is every table and figure."""

    name = "targets"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Convert to canonical names, each once."""
        known = {name.lower(): name for name in TARGETS}
        chosen: list[str] = []
        for word in (part.strip().lower() for part in value.split(",") if part.strip()):
            if word == "all":
                chosen += OF_THE_PAPER
            elif word in known:
                chosen.append(known[word])
            else:
                self.fail(f"{word!r} is not known{nearest(word.upper(), [*TARGETS, 'all'])}", param, ctx)
        if not chosen:
            self.fail("no target is named", param, ctx)
        return list(dict.fromkeys(chosen))


@click.command()
@click.argument("targets", type=TargetNames())
@click.option(
    "--scale",
    type=NearestChoice(SCALES),
    default="quick",
    show_default=True,
    help="Size of the runs: smoke takes seconds, quick minutes; full is the paper's setting.",
)
@click.option(
    "--preset",
    type=NearestChoice(PRESETS),
    default="paper",
    show_default=True,
    help="Hyperparameters: the paper's, the same with L2 weight decay, this library's, or its own before the protocol.",
)
@click.option("--seeds", type=Words(int), help="Comma-separated seeds; by default each target's own.")
@click.option("--device", default="auto", show_default=True, help="Device: cpu, cuda, cuda:1, ...")
@click.option("--data-dir", help="Folder of the data sets; by default data.")
@click.option(
    "--datasets",
    type=Words(choices=DATASETS),
    help="Use only these data sets; targets of others use the first of these.",
)
@click.option("--methods", type=Words(choices=tuple(NAMES)), help="Run only these methods.")
@click.option(
    "--messages",
    default="float32",
    show_default=True,
    help="Compression of messages: lean, lean:delta=int8, ...",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Stop every run at this round.")
@click.option(
    "--smooth",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Count a target as reached when the mean of this many evaluations reaches it.",
)
@click.option("--out", type=UserPath(), help="Folder of the tables, plots and report page.")
@campaign_flags
def reproduce(targets: list[str], out: Path | None, **flags: Any) -> None:
    """Reproduce tables and figures of the FedLADA paper: T1 to T8, F1 to F8, or all; theory, FLSIM and FEDOPT.

    Nothing is run twice: finished runs are reused, interrupted runs are resumed. quick takes minutes on two cores and
    uses Fashion-MNIST if it is there, else digits; full needs the paper's data sets and a GPU. theory measures the
    theorem's rate. FLSIM is the table of the authors' simulator, FEDOPT that of Reddi et al. (2021) on server
    optimizers.

    \b
    Example:
      fedlada reproduce T6
      fedlada reproduce T6,T8 --scale full --device cuda --data-dir data --out results
      fedlada reproduce all --scale full --data-dir data --shard 2/4 --out share2
    """
    work, quiet = work_of(flags), flags["quiet"] or flags["as_json"]
    settings, requests = asked_for(targets, flags)
    if "theory" in targets and (flags["budget"] is not None or work.shard.of > 1 or work.only_show):
        raise ValueError(
            "theory is computed in one go, without runs: leave --budget, --shard and --only-show out, or theory"
        )
    everything = [request for own in requests.values() for request in own]
    read_data(everything, quiet=quiet)
    folder = out or HOME / _folder_name(targets, flags)
    store = RunStore(flags["cache"] or (folder / "runs" if out else HOME / "runs"))
    adopted = take_over(store, folder, everything, work, flags["merge"])
    if not quiet:
        print(_headline(targets, settings, everything, store, adopted), file=sys.stderr)
    announce(folder, _title(targets), [store.outcome(request) for request in everything])
    outcomes = carry_out(everything, store, work)
    command = _command(targets, flags, out)
    shown = _write_all(targets, settings, requests, outcomes, folder, command, work)
    _say(shown, outcomes, folder, flags, work)


def asked_for(targets: list[str], flags: dict[str, Any]) -> tuple[dict[str, Setting], dict[str, list[Request]]]:
    """The setting of each target and the runs that it needs."""
    settings = {name: _setting(TARGETS[name], flags) for name in targets}
    requests = {name: list(TARGETS[name].requests(setting)) for name, setting in settings.items()}
    if flags["messages"] != "float32" and not any(requests.values()):
        raise ValueError(f"{' and '.join(targets)}: there are no runs, so nothing is sent; leave --messages out")
    return settings, requests


def _folder_name(targets: list[str], flags: dict[str, Any]) -> str:
    """Named by all settings that change the result: a partial table must not replace the whole one."""
    is_everything = set(targets) == set(OF_THE_PAPER)
    words = [
        "all" if is_everything else "-".join(targets),
        flags["scale"],
        flags["preset"],
        *(flags["datasets"] or ()),
        *(flags["methods"] or ()),
    ]
    words += [] if flags["messages"] == "float32" else [flags["messages"]]
    words += ["seeds", *map(str, flags["seeds"])] if flags["seeds"] else []
    words += [f"rounds-{flags['rounds']}"] if flags["rounds"] else []
    words += [f"smooth-{flags['smooth']}"] if flags["smooth"] > 1 else []
    return as_file_name("-".join(words))


def _title(targets: list[str]) -> str:
    if len(targets) == 1:
        return f"{targets[0]}: {TARGETS[targets[0]].title}"
    return f"{', '.join(targets)} of the paper"


def _setting(target: Target, flags: dict[str, Any]) -> Setting:
    silent = flags["quiet"] or flags["as_json"]
    if flags["methods"] and not target.methods:
        raise ValueError(f"{target.name} compares no methods: leave --methods out")
    if flags["data_dir"] is not None and not user_path("data_dir", flags["data_dir"]).exists():
        raise ValueError(f"there is no folder {flags['data_dir']}: give the folder of the data with --data-dir")
    return Setting.named(
        flags["scale"],
        preset=flags["preset"],
        seeds=tuple(flags["seeds"] or target.seeds(flags["scale"])),
        device=flags["device"],
        data_dir=None if flags["data_dir"] is None else str(user_path("data_dir", flags["data_dir"])),
        max_rounds=flags["rounds"],
        chosen_datasets=tuple(flags["datasets"] or ()),
        chosen_methods=tuple(flags["methods"] or ()),
        messages=flags["messages"],
        smooth=flags["smooth"],
        tell=None if silent else lambda text: print(text, file=sys.stderr),
    )


def _headline(
    targets: list[str], settings: dict[str, Setting], requests: list[Request], store: RunStore, adopted: int
) -> str:
    setting = settings[targets[0]]
    runs = {store.path(request) for request in requests}
    there = {store.path(request) for request in requests if not store.outcome(request).is_settled}
    taken = f", {adopted} of them taken over" if adopted else ""
    data = ", ".join(dict.fromkeys(request.experiment.dataset for request in requests)) or "no data set"
    data += "" if setting.messages == "float32" else f", messages in {setting.messages}"
    return (
        f"{', '.join(targets)} at scale {setting.scale.name} on {data}: {len(runs)} runs, "
        f"{len(runs) - len(there)} of them done already{taken}; runs are kept in {store.folder}"
    )


def _write_all(
    targets: list[str],
    settings: dict[str, Setting],
    requests: dict[str, list[Request]],
    outcomes: list[Outcome],
    folder: Path,
    command: str,
    work: Work,
) -> dict[str, Shown]:
    """A folder for each of several targets, and one page of all of them."""
    left, shown = list(outcomes), {}
    all_notes: dict[str, None] = {}
    several = len(targets) > 1
    for name in targets:
        own = [left.pop(0) for _ in requests[name]]
        place = folder / name if several else folder
        with cpu_threads(torch.device("cpu"), 1):  # F8 and theory compute here
            found = TARGETS[name].show(replace(settings[name], folder=place), group(own))
        hyper = hyper_parameter_table(TARGETS[name], settings[name], own)
        if own and settings[name].messages != "float32":
            found = found.with_note(f"Messages in {settings[name].messages}.")
        shown[name] = replace(found, tables=(*found.tables, *([] if hyper is None else [hyper])))
        notes = [*still_open(own, work), *setting_notes(TARGETS[name], settings[name], own)]
        all_notes |= dict.fromkeys(notes)
        write_folder(place, _title([name]), **vars(shown[name]), outcomes=own, notes=notes, command=command)
    if several:
        together = Shown(
            tuple(table for one in shown.values() for table in one.tables),
            tuple(chart for one in shown.values() for chart in one.charts),
        )
        title, notes = _title(targets), list(all_notes)
        write_folder(folder, title, **vars(together), outcomes=outcomes, notes=notes, command=command, pictures=False)
    return shown


def _say(shown: dict[str, Shown], outcomes: list[Outcome], folder: Path, flags: dict[str, Any], work: Work) -> None:
    if flags["as_json"]:
        tables = {name: [table.to_json() for table in one.tables] for name, one in shown.items()}
        complete = all(outcome.is_settled for outcome in outcomes)
        print(json.dumps({"folder": str(folder), "complete": complete, "targets": tables}))
    elif not flags["quiet"]:
        print_tables([table for one in shown.values() for table in one.tables])
        print(f"in {folder}: report.html, table.md, table.csv, table.tex, tables.json and the pictures")
    say_and_end(outcomes, still_open(outcomes, work))


def _command(targets: list[str], flags: dict[str, Any], out: Path | None) -> str:
    """The command that reproduces this folder on one machine."""
    named = (
        "scale",
        "preset",
        "seeds",
        "device",
        "data_dir",
        "datasets",
        "methods",
        "messages",
        "rounds",
        "smooth",
        "cache",
    )
    flags_alone = command_line("reproduce", [*((name, flags[name]) for name in named), ("out", out)])
    return flags_alone.replace("reproduce", f"reproduce {','.join(targets)}", 1)
