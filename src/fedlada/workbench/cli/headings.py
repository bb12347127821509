"""Sections of a command's help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

HEADINGS: dict[str, str] = {
    "Method and data": "method methods dataset data data_dir augment image_size crop_size standardize validation model "
    "personal config trust",
    "Clients": "num_clients cohort_size cohorts partition concentration fine_concentration refill classes_per_client "
    "size_spread weights dropout stragglers attack",
    "Training": "rounds batch_size local_epochs local_steps lr lr_decay warmup debias combiner messages seed seeds "
    "target stop_at_target patience",
    "Search": "grid select by halving each_alone sample",
    "Privacy, with --combiner private:CLIP": "noise_multiplier target_epsilon target_delta noise_cohort "
    "noise_population",
    "Evaluation": "eval_every eval_train_every eval_batch_size client_test personal_steps personal_every best",
    "Computing": "device threads engine precision ordered dtype jobs",
}
"""The flags of each section of a command's help, in order; hyperparameters have their own, the rest is in the last."""


def write_sections(
    params: Sequence[click.Parameter],
    ctx: click.Context,
    formatter: click.HelpFormatter,
    hyper_parameters: Iterable[str],
) -> None:
    """Every flag under its heading, in the same order in every command."""
    headings = {name: heading for heading, names in HEADINGS.items() for name in names.split()}
    order = {name: place for place, name in enumerate(headings)}
    hyper = "Hyperparameters of methods"
    headings |= dict.fromkeys(hyper_parameters, hyper)
    sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*HEADINGS, hyper, "Output")}
    for one in sorted(params, key=lambda one: order.get(one.name or "", len(order))):
        if (record := one.get_help_record(ctx)) is not None:
            sections[headings.get(one.name or "", "Output")].append(record)
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)
