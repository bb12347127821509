"""The metrics that an experiment will measure, and the check of its target against them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedlada.data.source import Source
from fedlada.methods.validation import nearest
from fedlada.training.target import Target
from fedlada.workbench.experiment import Experiment


def check_target(experiments: Sequence[Experiment], source: Source) -> None:
    """Refuse a target whose metric none of these experiments will measure.

    A plain accuracy is accepted where the test set is left out: it may come from a stored configuration.
    """
    first = experiments[0]
    if first.target is None or (not isinstance(first.target, str) and (first.validation or first.personal)):
        return
    metric = Target.parse(first.target).column
    known = list(dict.fromkeys(name for one in experiments for name in metrics_of(one, source)))
    if metric not in known:
        raise ValueError(f"the metric {metric!r} of --target is not measured in this run{nearest(metric, known)}")


def metrics_of(experiment: Experiment, source: Source) -> list[str]:
    """Names of the metrics that the rows of a run will have."""
    built_in = ("accuracy", "loss") if source.has_classes else ("loss",)
    names = [
        f"{whose}_{what}{ending}"
        for whose in _evaluated(experiment)
        for ending in ("", *(f"_of_{other}" for other in _other_models(experiment)))
        for what in built_in
    ]
    if experiment.eval_train_every is not None:
        names += [f"full_train_{what}" for what in built_in]
    if experiment.client_test is not None:
        tests = ("client", "personal") if experiment.personal_steps else ("client",)
        names += [f"{one}_{built_in[0]}{of}" for one in tests for of in ("", "_worst_decile", "_std")]
    is_private = (experiment.combiner or "").startswith("private")  # the clients' own numbers are withheld then
    return names if is_private else [*names, "train_loss", "drift"]


def _other_models(experiment: Experiment) -> list[str]:
    """Names of the models that the server's optimizer evaluates besides its own."""
    server = experiment.build_method().server
    params = torch.zeros(1)
    try:
        return list(server.other_models(params, server.init(params)))
    except Exception:  # a user's own may want the model's size
        return []


def _evaluated(experiment: Experiment) -> tuple[str, ...]:
    """The data on which every model of the server is evaluated."""
    if experiment.personal:
        return ()
    return ("validation",) if experiment.validation else ("test",)
