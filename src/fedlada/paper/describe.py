"""The description of a reproduction: its setting, the hyperparameters of both presets, and our choices."""

from __future__ import annotations

from collections.abc import Sequence

from fedlada.paper.choices import CHOICES, Values, choices_of
from fedlada.paper.published import TITLES
from fedlada.paper.setting import Setting, name_of
from fedlada.paper.target import Target
from fedlada.workbench.campaign.request import Outcome
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.table import Table


def hyper_parameter_table(target: Target, setting: Setting, outcomes: Sequence[Outcome]) -> Table | None:
    """The paper's values next to ours, for the methods that were run; a table of other authors has its own values."""
    if not target.is_of_the_paper:
        return _own_values(outcomes)
    presets = (
        "paper-l2" if setting.preset == "paper-l2" else "paper",
        "earlier" if setting.preset == "earlier" else "tuned",
    )
    methods = list(dict.fromkeys(outcome.request.experiment.method for outcome in outcomes))
    used = {outcome.request.experiment.dataset for outcome in outcomes}
    if not methods:
        return None
    rows = []
    for paper in setting.datasets(*target.papers):
        # A scale may have other data for one target than for the rest.
        dataset = setting.dataset(paper) if setting.dataset(paper) in used else min(used)
        for method in methods:
            values = {one: setting.values(paper, method, preset=one, dataset=dataset) for one in presets}
            texts = [values[one].text(method, mark=one.startswith("paper")) for one in presets]
            rows.append((TITLES[dataset], name_of(method), *texts))
    columns = (
        "data",
        "method",
        *(f"{preset}{' (used here)' if preset == setting.preset else ''}" for preset in presets),
    )
    notes = (
        "*: never printed by the paper, our choice. The learning rate shrinks by 0.998 a round. What a table or figure "
        "varies replaces the value here.",
    )
    return Table("Hyperparameters", columns, tuple(rows), notes)


def _own_values(outcomes: Sequence[Outcome]) -> Table | None:
    rows = {}
    for outcome in outcomes:
        own, group = outcome.request.experiment.resolved(), outcome.request.group
        assert own.lr is not None
        assert own.lr_decay is not None
        values = Values(own.lr, hyper=own.hyper).text(own.method)
        rows[group] = (TITLES[own.dataset], group, values, f"{own.lr_decay:g}")
    columns = ("data", "runs", "values", "factor on lr after each round")
    return Table("Hyperparameters", columns, tuple(rows.values())) if rows else None


def setting_notes(target: Target, setting: Setting, outcomes: Sequence[Outcome]) -> list[str]:
    """The setting in sentences, and for the paper's own tables our choices."""
    experiments = [outcome.request.experiment for outcome in outcomes]
    by_dataset: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        by_dataset.setdefault(experiment.dataset, []).append(experiment.resolved())
    notes = [_describe(dataset, own) for dataset, own in by_dataset.items()]
    if outcomes and setting.scale.name != "full":
        notes.append(
            f"Scale {setting.scale.name}: other data and a smaller model than the paper's, so its figures stand beside "
            "ours for their order and ratios, not their size. --scale full is the paper's setting."
        )
    general = CHOICES if target.is_of_the_paper and experiments else ()
    return [*notes, *general, *dict.fromkeys(choice for one in experiments for choice in choices_of(one))]


def _describe(dataset: str, runs: Sequence[Experiment]) -> str:
    """All runs on a data set: where they differ in a field, each of its values is named."""

    def values(name: str) -> str:
        found = dict.fromkeys(getattr(run, name) for run in runs)
        return " or ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in found)

    refilled = " with refilled pools" if all(run.refill for run in runs) else ""
    return (
        f"{dataset}: model {values('model')}, {values('num_clients')} clients, {values('cohort_size')} a round, "
        f"{values('partition').capitalize()} {values('concentration')}{refilled}, batches of {values('batch_size')}, "
        f"{values('local_epochs')} local epoch(s), augmentation {values('augment')}, messages in {values('messages')}; "
        f"runs can reach round {values('rounds')}."
    )
