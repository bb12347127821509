"""Every table and figure of the paper by its name."""

from __future__ import annotations

from fedlada.paper import (
    f1_global_and_local,
    f2_all_methods,
    f3_local_interval,
    f4_participation,
    f5_amended_server,
    f6_activations,
    f7_consistency,
    f8_dislocation,
    fedopt,
    flsim,
    t1_speed,
    t2_combinations,
    t3_local_interval,
    t4_amended_weight,
    t5_converged,
    t6_stages,
    t7_scaled_scaffold,
    t8_cost,
    theory_in_practice,
)
from fedlada.paper.target import Target

MODULES = (
    t1_speed,
    t2_combinations,
    t3_local_interval,
    t4_amended_weight,
    t5_converged,
    t6_stages,
    t7_scaled_scaffold,
    t8_cost,
    f1_global_and_local,
    f2_all_methods,
    f3_local_interval,
    f4_participation,
    f5_amended_server,
    f6_activations,
    f7_consistency,
    f8_dislocation,
    theory_in_practice,
    flsim,
    fedopt,
)

TARGETS: dict[str, Target] = {module.TARGET.name: module.TARGET for module in MODULES}
OF_THE_PAPER = tuple(name for name, target in TARGETS.items() if target.is_of_the_paper)
