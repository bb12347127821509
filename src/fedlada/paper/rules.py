"""Notes below tables: how figures are computed."""

from __future__ import annotations

from fedlada.paper.setting import Setting

NEVER_RULE = "∞: not reached in the rounds run; (n of m: ...) is the number of seeds that reached it."
RATIO_RULE = "Ratios are to the best of the column; ours only where every seed reached the target."


def rounds_rule(setting: Setting) -> str:
    """When a target counts as reached."""
    every = setting.scale.eval_every
    if setting.smooth == 1:
        what = "the first evaluation at or above it"
    else:
        what = f"the first evaluation at which the mean of the last {setting.smooth} is at or above it"
    often = "every round" if every == 1 else f"every {every} rounds"
    return (
        f"A target is reached in the round of {what}; the test data are evaluated {often}, the clients' training data "
        f"every {setting.scale.eval_train_every}. {seeds_rule(setting)}"
    )


def seeds_rule(setting: Setting) -> str:
    """The seeds of the average."""
    if len(setting.seeds) == 1:
        return f"One seed ({setting.seeds[0]})."
    return f"Mean ± standard deviation over {len(setting.seeds)} seeds ({', '.join(map(str, setting.seeds))})."


def accuracy_rule(setting: Setting, what: str) -> str:
    """Which accuracy is shown."""
    smoothed = "" if setting.smooth == 1 else f", as the mean of {setting.smooth} consecutive evaluations"
    return f"{what}{smoothed}. {seeds_rule(setting)}"


def best_and_last_rule(setting: Setting) -> str:
    """Which of a run's accuracies are shown where the paper's may be either."""
    rounds = setting.goal(setting.scale.curve).rounds
    return accuracy_rule(setting, f"The paper does not say whether best or last; both of {rounds} rounds are given")
