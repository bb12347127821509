"""Every table and figure of the paper by its name, the theory, and the tables of others."""

from __future__ import annotations

from fedlada.paper.combinations import T2
from fedlada.paper.converged import T5
from fedlada.paper.cost import T8
from fedlada.paper.dislocation import F8
from fedlada.paper.fedopt import SERVER_OPTIMIZERS
from fedlada.paper.figures import FIGURES
from fedlada.paper.flsim import FLSIM
from fedlada.paper.speed import T1, T6
from fedlada.paper.target import Target
from fedlada.paper.theory_in_practice import THEORY
from fedlada.paper.variants import T3, T4, T7

TARGETS: dict[str, Target] = {
    target.name: target for target in (T1, T2, T3, T4, T5, T6, T7, T8, *FIGURES, F8, THEORY, FLSIM, SERVER_OPTIMIZERS)
}
OF_THE_PAPER = tuple(name for name, target in TARGETS.items() if target.is_of_the_paper)
