"""Hyperparameters: the paper's, ours, and our choices where the paper gives none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedlada.methods.recipes import hyper_parameters
from fedlada.methods.validation import one_of
from fedlada.training.suggested import ADAPTIVE, EARLIER, SGD_BASED, TUNED, Tuned, is_adaptive, printed_hyper
from fedlada.workbench.campaign.identity import device_kind
from fedlada.workbench.experiment import Experiment

PRESETS = ("paper", "paper-l2", "tuned", "earlier")
"""The paper's values with the weight decay of adaptive clients after AMSGrad, or before it; the library's own; and its
own before the protocol."""

NEVER_PRINTED: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.1},
    "fedcm": {"alpha": 0.1},
    "fedadam_amended": {"alpha": 0.1},
}
"""Our choice where the paper gives none: the values of the authors' public simulator."""

CHOICES = (
    "In the preset paper FedProx's mu is 0.1 and alpha of FedCM and FedAdam(*) is 0.1: the paper prints neither; both "
    "are the values of the authors' public simulator.",
    "There FedAdam and FedAdam(*) have L2 1e-3, as all methods with local SGD: two sentences of the paper disagree.",
    "Gradients are clipped at norm 10, as in the authors' simulator; the paper does not say so.",
    "In each round v starts from zero and its maximum from the server's mean; in the preset paper the first maximum is "
    "1e-8. The server's Adam has tau 1e-2.",
    "Every round has exactly S clients.",
    "In the preset paper the weight decay of LocalAdam and FedLADA acts after AMSGrad (decoupled), in paper-l2 it is "
    "part of the gradient, before the moments; the paper does not say. That of all others is part of the gradient.",
)


AUGMENTATION = (
    "Augmentation is the authors': every second image is flipped, and for every second one a random crop of the padded "
    "image is taken, as in their simulator; the paper mentions random crops without a frequency."
)
STEM = (
    "ResNet-18-GN has ImageNet's stem, 7x7 with stride 2 and a max-pool also at 32x32, and 2 groups in each GroupNorm; "
    "the paper does not say; both follow the authors' simulator."
)
PRECISION = (
    "On a GPU gradients are computed in bf16, parameters and states are kept in float32; the paper says nothing."
)


def choices_of(experiment: Experiment) -> tuple[str, ...]:
    """Choices that affect this run and not every one."""
    full = experiment.resolved()
    is_rounded = device_kind(full.device) == "cuda" and full.engine != "sequential" and full.dtype == "float32"
    bears = {
        AUGMENTATION: full.augment == "authors",
        STEM: full.model == "resnet18-gn",
        PRECISION: is_rounded and full.precision in ("auto", "bf16"),
    }
    return tuple(sentence for sentence, is_so in bears.items() if is_so)


@dataclass(frozen=True)
class Values:
    """Rates and hyperparameters of a method."""

    lr: float
    lr_decay: float = 0.998
    hyper: Mapping[str, Any] = field(default_factory=dict)

    def text(self, method: str, *, mark: bool = False) -> str:
        """The values as text; those that the paper does not give have a star."""
        ours = {"clip_norm", "decoupled", *NEVER_PRINTED.get(method, {})} if mark else set()
        numbers = {name: value for name, value in self.hyper.items() if type(value) in (int, float)}
        hyper = [f"{name} {value:g}{'*' if name in ours else ''}" for name, value in numbers.items()]
        switched_on = [f"{name}{'*' if name in ours else ''}" for name, value in self.hyper.items() if value is True]
        return ", ".join([f"lr {self.lr:g}", *hyper, *switched_on])


def values_of(preset: str, paper_dataset: str, dataset: str, method: str) -> Values:
    """A preset's values for a method on a data set that is, or stands for, one of the paper's."""
    one_of("preset", preset, PRESETS)
    printed = _printed(paper_dataset, method)
    if preset == "paper":
        return printed
    with_l2 = _with_l2(printed)
    if preset == "paper-l2":
        return with_l2
    if (ours := OURS.get((dataset, method))) is not None:
        return Values(ours[0], hyper={**with_l2.hyper, **ours[1]})
    found = (EARLIER if preset == "earlier" else TUNED).get((dataset, method))
    return printed if found is None else Values(found[0], hyper=dict(found[1]))


def _printed(paper_dataset: str, method: str) -> Values:
    rates = ADAPTIVE if is_adaptive(method) else SGD_BASED
    hyper = printed_hyper(paper_dataset, method)
    if "server_lr" in hyper_parameters(method) and method.startswith("fedadam"):
        hyper["server_lr"] = 0.1
    return Values(rates["lr"], rates["lr_decay"], {**hyper, **NEVER_PRINTED.get(method, {})})


def _with_l2(values: Values) -> Values:
    """The same decay before the moments; our values were searched this way unless they say otherwise."""
    # Explicit, because a missing value would be filled in by the data set, as in the preset paper.
    return replace(values, hyper={**values.hyper, **({"decoupled": False} if "decoupled" in values.hyper else {})})


OURS: dict[tuple[str, str], Tuned] = {
    ("fashion-mnist", "fedavg"): (0.15, {"weight_decay": 0.0}),
    ("fashion-mnist", "fedprox"): (0.15, {"mu": 0.01, "weight_decay": 0.0}),
    ("fashion-mnist", "scaffold"): (0.05, {"correction": 1.0, "server_lr": 1.5, "weight_decay": 1e-4}),
    ("fashion-mnist", "fedcm"): (0.5, {"alpha": 0.2, "weight_decay": 1e-4}),
    ("fashion-mnist", "fedadam"): (0.1, {"server_lr": 0.01, "tau": 1e-3, "weight_decay": 1e-4}),
    ("fashion-mnist", "fedadam_amended"): (0.2, {"server_lr": 0.01, "alpha": 0.5, "weight_decay": 0.0}),
    ("fashion-mnist", "localadam"): (2e-3, {"weight_decay": 0.0, "v_init": 1e-8, "beta1": 0.0}),
    ("fashion-mnist", "fedlada"): (5e-3, {"weight_decay": 0.0, "v_init": 1e-6, "alpha": 0.3, "beta1": 0.0}),
}
"""For the quick scale, on top of `paper-l2`: the best of 26 each, on held-out data (`benchmarks/results/sweep2_*`).

Not among the suggested values: they belong to that scale's model and clients, not to the data set."""
