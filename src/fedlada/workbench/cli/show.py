"""`fedlada methods`, `fedlada data show` and `fedlada data fetch`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedlada.data.archives import OFFICIAL
from fedlada.data.fetch import fetch as fetch_official
from fedlada.data.sources import DATASETS, USUAL_PLACE
from fedlada.federation.partition import ByKey
from fedlada.methods.factory import hyper_parameters, method_factory
from fedlada.methods.recipes import RECIPES
from fedlada.workbench.cli.flags import build_experiment, experiment_flags
from fedlada.workbench.cli.output import print_table
from fedlada.workbench.cli.unused import refuse_unused
from fedlada.workbench.cli.values import MethodName, NearestChoice, UserPath
from fedlada.workbench.presets import ADVICE
from fedlada.workbench.progress import Chores
from fedlada.workbench.words import in_words

DIVISION = (
    "data_dir",
    "image_size",
    "validation",
    "num_clients",
    "partition",
    "concentration",
    "fine_concentration",
    "refill",
    "classes_per_client",
    "size_spread",
    "seed",
)
"""Fields that decide which samples a client has."""


@click.command()
@click.argument("names", nargs=-1, metavar="[NAMES]...", type=MethodName(tuple(RECIPES)))
@click.option(
    "--dataset",
    type=NearestChoice(tuple(DATASETS)),
    help="Show the learning rates and hyperparameters used on this data set.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def methods(names: tuple[str, ...], dataset: str | None, as_json: bool) -> None:
    """List the methods: their parts, hyperparameters and the vectors they send.

    NAMES are methods to list, including your own as package.module:factory; by default all built-in ones.

    \b
    Example:
      fedlada methods
      fedlada methods --dataset cifar100
    """
    rows = []
    for name in names or RECIPES:
        recipe = method_factory(name)
        method = recipe()
        down, up = method.num_vectors()
        rows.append(
            {
                "method": name,
                "local": [type(part).__name__ for part in method.local],
                "server": type(method.server).__name__,
                "down": down,
                "up": up,
                "gradients": method.gradients_per_step,
                **_values_on(dataset, name),
                "summary": ((recipe.__doc__ or "").splitlines() or [""])[0],
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    columns = ["method", "local", "server", "down", "up", *_values_on(dataset, names[0] if names else "fedlada")]
    print_table(columns, [[_text(row[column]) for column in columns] for row in rows])
    print("down, up: vectors of the model's size sent per client and round")
    if dataset is None:
        print("values: the recipes' defaults; --dataset npz: what is used for your own data")
    elif dataset in ADVICE:
        print(f"measured with these values: {ADVICE[dataset]}")


@click.command()
@click.argument("name", type=NearestChoice(tuple(OFFICIAL)))
@click.option(
    "--data-dir",
    type=UserPath(),
    default=USUAL_PLACE,
    show_default=True,
    help="Folder to download into.",
)
@click.option("--quiet", is_flag=True, help="Print no progress.")
def fetch(name: str, data_dir: Path, quiet: bool) -> None:
    """Download a data set's official archive, check it and unpack it.

    An interrupted download is resumed; an archive that is already in the folder is used.

    \b
    Example:
      fedlada data fetch cifar10
      fedlada run --dataset cifar10
    """
    with Chores(quiet=quiet) as bars:
        place = fetch_official(name, data_dir, progress=bars)
    where = "" if data_dir == USUAL_PLACE else f" --data-dir {data_dir}"
    print(f"{name} is in {place}: use it with --dataset {name}{where}")


@click.command()
@click.argument("name", type=NearestChoice(tuple(DATASETS)), required=False)
@experiment_flags(only=(*DIVISION, "config"))
@click.option("--out", type=UserPath(), help="Also save a plot of the partition to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def show(name: str | None, out: Path | None, as_json: bool, **flags: Any) -> None:
    """Show a data set and its partition among clients.

    \b
    Example:
      fedlada data show digits --num-clients 30 --concentration 0.3
    """
    # Neither model nor method is built here, so that stored ones need not be trusted.
    experiment = build_experiment(flags, dataset=name, model="mlp", method="fedavg")
    refuse_unused(flags, [experiment])
    with Chores(quiet=as_json) as bars:
        source = experiment.load_data(bars)
    labels = source.labels("train")
    partition = experiment.build_partition(source)
    clients = partition.assign(labels, experiment.seed)
    sizes = np.array([len(own) for own in clients])
    num_classes = np.array([len(np.unique(labels[own])) for own in clients])
    is_classes = labels.ndim == 1 and labels.dtype.kind in "iu"
    client_names = partition.client_names()
    facts = {
        "dataset": experiment.dataset,
        "train samples": len(labels),
        "test samples": len(source.labels("test")),
        "input shape": "x".join(str(size) for size in source.input_shape),
        ("classes" if is_classes else "targets"): _with_names(source.num_classes, source.class_names),
        "clients": _with_names(len(clients), client_names),
        "samples per client": f"{sizes.min()} to {sizes.max()}, median {np.median(sizes):g}",
        **(
            {"classes per client": f"{num_classes.min()} to {num_classes.max()}, median {np.median(num_classes):g}"}
            if is_classes
            else {}
        ),
        "samples used": f"{len(np.unique(np.concatenate(clients)))} of {len(labels)}",
    }
    if as_json:
        numbers = {"classes": source.num_classes, "clients": len(clients)}
        names = {"client names": list(client_names), "class names": list(source.class_names)}
        print(json.dumps({**facts, **numbers, "sizes": sizes.tolist(), **{k: v for k, v in names.items() if v}}))
    else:
        print_table(["", "value"], [[key, str(value)] for key, value in facts.items()])
    if out is not None:
        from fedlada.plots.draw import plot_partition

        rule = "one client for each key" if isinstance(partition, ByKey) else partition
        counted = labels if is_classes else np.zeros(len(labels), dtype=np.int64)
        plot_partition(clients, counted, title=f"{experiment.dataset}: {rule}").savefig(out)
        if not as_json:
            print(f"the partition is drawn in {out}")


def _with_names(number: int, names: Sequence[str]) -> str:
    """A number, and the first few of the names."""
    return str(number) + (f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "")


def _values_on(dataset: str | None, method: str) -> dict[str, Any]:
    """A method's hyperparameters: the recipe's defaults, or the values for a data set."""
    if dataset is None:
        return {"hyperparameters": hyper_parameters(method)}
    full = build_experiment({}, dataset=dataset, method=method).resolved()
    return {"lr": full.lr, "lr_decay": full.lr_decay, "hyperparameters": full.hyper}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return in_words(value)
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return str(value)
