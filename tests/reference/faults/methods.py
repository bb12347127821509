"""Mistakes in the algebra: transforms, server optimizers, recipes, the mean."""

from __future__ import annotations

from functools import partial

from reference.faults import Check, Faults

METHOD, AMSGRAD = "methods/method.py", "methods/local/amsgrad.py"
RECIPES, SERVER = "methods/recipes/chains.py", "methods/server.py"
SMOO = "methods/local/global_sharpness_aware.py"
NORMALIZED = "methods/combine/normalized.py"
DECAY, DYNAMIC = "methods/local/weight_decay.py", "methods/local/dynamic_regularizer.py"

FAULTS: Faults = {
    "local step uphill": (METHOD, "update * -lr", "update * lr"),
    "delta points downhill": (
        METHOD,
        "delta=local.anchor - local.params",
        "delta=local.params - local.anchor",
    ),
    "server step uphill": (SERVER, "params - self.lr * delta", "params + self.lr * delta"),
    "fednova: updates not divided by their steps": (NORMALIZED, "one.delta / _steps(one)", "one.delta"),
    "fednova: the mean step is not scaled back": (NORMALIZED, "delta=_steps(mean) * mean.delta", "delta=mean.delta"),
    "fednova: everybody takes one step": ("methods/local/step_count.py", "+ done.num_steps", "+ 1"),
    "server rate forgotten": (SERVER, "params - self.lr * delta", "params - delta"),
    "first moment: beta swapped": (
        AMSGRAD,
        'self.beta1 * local["m"] + (1 - self.beta1) * update',
        '(1 - self.beta1) * local["m"] + self.beta1 * update',
    ),
    "second moment: beta swapped": (
        AMSGRAD,
        'self.beta2 * local["v"] + (1 - self.beta2) * update * update',
        '(1 - self.beta2) * local["v"] + self.beta2 * update * update',
    ),
    "second moment: gradient not squared": (
        AMSGRAD,
        "(1 - self.beta2) * update * update",
        "(1 - self.beta2) * update.abs()",
    ),
    "the power ignored": (AMSGRAD, 'state["v_max"] ** self.power', 'state["v_max"].sqrt()'),
    "no square root": (AMSGRAD, 'state["v_max"].sqrt()', 'state["v_max"]'),
    "v reset each round": (AMSGRAD, "return mean\n", "return shared\n"),
    "minimum instead of maximum": (AMSGRAD, "torch.maximum(v,", "torch.minimum(v,"),
    "v uploaded instead of its maximum": (AMSGRAD, '{"v": local["v_max"]}', '{"v": local["v"]}'),
    "v starts from the wrong place": (
        AMSGRAD,
        'self.v_start == "zero" else v_rec',
        "True else v_rec",
    ),
    "bias correction off by one": (
        AMSGRAD,
        "m = m / _sum_of_weights(self.beta1, tau)",
        "m = m / _sum_of_weights(self.beta1, tau + 1)",
    ),
    "alpha swapped": (
        "methods/local/global_direction.py",
        "self.alpha * update + (1 - self.alpha) * step",
        "(1 - self.alpha) * update + self.alpha * step",
    ),
    "direction has the wrong sign": ("methods/local/global_direction.py", "round.delta /", "-round.delta /"),
    "direction forgets the steps": ("methods/local/global_direction.py", "(round.lr * round.num_steps)", "round.lr"),
    "direction: K off by one": (
        "methods/local/global_direction.py",
        "(round.lr * round.num_steps)",
        "(round.lr * (round.num_steps - 0.999))",
    ),
    "proximal pull away": ("methods/local/proximal.py", "(step.params - step.anchor)", "(step.anchor - step.params)"),
    "control variate: wrong sign": (
        "methods/local/control_variate.py",
        "update + self.correction",
        "update - self.correction",
    ),
    "control variate: scale cancels": (
        "methods/local/control_variate.py",
        "mean_step - self.correction * local",
        "mean_step - local",
    ),
    "control variate: participation forgotten": ("methods/local/control_variate.py", "round.participation * ", ""),
    "control variate: K off by one": (
        "methods/local/control_variate.py",
        "(done.num_steps * done.lr)",
        "((done.num_steps + 1) * done.lr)",
    ),
    "memory not updated": (
        "methods/local/control_variate.py",
        '{"control_change": control - own}, {"control": control}',
        '{"control_change": control - own}, {"control": own}',
    ),
    "weight growth": (DECAY, "update + self.strength", "update - self.strength"),
    "decay towards the anchor": (
        DECAY,
        "self.strength * step.params",
        "self.strength * step.anchor",
    ),
    "clip grows small updates": ("methods/local/clip_norm.py", ".clamp(max=1)", ""),
    "norm over all stacked clients": ("methods/norm.py", "(vector, dim=-1, keep", "(vector, keep"),
    "mean across clients": (
        AMSGRAD,
        "* update * update",
        "* (update * update).mean(0, keepdim=True)",
    ),
    "server adam: beta swapped": (
        SERVER,
        'self.beta1 * state["m"] + (1 - self.beta1) * delta',
        '(1 - self.beta1) * state["m"] + self.beta1 * delta',
    ),
    "server adam: tau inside the root": (SERVER, "(v.sqrt() + self.tau)", "(v + self.tau).sqrt()"),
    "mean is a sum": ("methods/combine/mean.py", "tensor / total_weight", "tensor"),
    "weights ignored": ("methods/combine/mean.py", "float(weights[index])", "1.0"),
    "dynamic regularizer: sign of h": (
        DYNAMIC,
        'kept["h"] - like',
        '-kept["h"] - like',
    ),
    "dynamic regularizer: h of the last round alone": (
        DYNAMIC,
        'step.kept["h"] - done.delta',
        "-done.delta",
    ),
    "dynamic average: participation forgotten": (SERVER, "round.participation * delta", "delta"),
    "dynamic average: H forgotten": (SERVER, "params - delta + h,", "params - delta,"),
    "looks downhill": ("methods/local/sharpness_aware.py", "point + of_length", "point - of_length"),
    "look: norm over all stacked clients": (
        "methods/local/sharpness_aware.py",
        "norm(vector)",
        "norm(vector.flatten())",
    ),
    "look forgotten": (
        METHOD,
        "gradient_at(point))\n\n    def look",
        "gradient_at(local.params))\n\n    def look",
    ),
    "perturbation: agreed one added": (SMOO, "gradient_at(point) - local", "gradient_at(point) + local"),
    "perturbation: dual starts anew": (
        SMOO,
        'return {"dual": kept["dual"]}',
        'return {"dual": torch.zeros_like(like)}',
    ),
    "perturbation: agreed one forgotten": (SMOO, "uphill - agreed", "uphill"),
    "perturbation: mean of any length": (SMOO, 'of_length(self.rho, mean["dual"])', 'mean["dual"]'),
    "FedLESAM looks downhill": ("methods/local/uphill_globally.py", "point + step", "point - step"),
    "server momentum: delta weighed": (SERVER, '* state["m"] + delta', '* state["m"] + (1 - self.momentum) * delta'),
    "Adagrad forgets": (SERVER, 'state["v"] + delta * delta', "delta * delta"),
    "Yogi: sign swapped": (SERVER, 'torch.sign(state["v"] - square)', 'torch.sign(square - state["v"])'),
    "FedExP: half forgotten": ("methods/combine/extrapolated.py", "(2 * (mean", "(1 * (mean"),
    "FedExP: steps may shrink": ("methods/combine/extrapolated.py", ".clamp(min=1)", ""),
    "regularizer: x clipped all the same": (RECIPES, "with_params=clip_pull", "with_params=True"),
    "look behind the clipping": (
        RECIPES,
        "local = (*look, *clip_and_decay(clip_norm, l2), opt",
        "local = (*clip_and_decay(clip_norm, l2), opt",
    ),
    "clip after L2": (RECIPES, "return clip + decay", "return decay + clip"),
    "correction after clipping": (
        RECIPES,
        "correction + clip_and_decay(clip_norm, weight_decay)",
        "clip_and_decay(clip_norm, weight_decay) + correction",
    ),
    "amendment before AMSGrad": (RECIPES, "optimizer, *amendment,", "*amendment, optimizer,"),
    "decoupled decay as L2": (
        RECIPES,
        "(0.0, weight_decay) if decoupled",
        "(weight_decay, 0.0) if decoupled",
    ),
}

REFERENCES: dict[str, list] = {}
"""What the references give, by case: NumPy alone, which no fault in the library can change."""


def checks() -> list[Check]:
    """The mean, and every method by both drivers against its reference."""
    from driver import run_method, run_method_stacked
    from method_table import CASES
    from reference.problem import make_problem

    found: list[Check] = [mean_is_right]
    runs = {"one by one": (run_method, make_problem(seed=1))}
    runs["stacked"] = (run_method_stacked, make_problem(seed=2, equal_steps=True))
    for name, hyper in CASES:
        for how, (run, problem) in runs.items():
            found.append(partial(method_is_right, f"{name} {hyper} {how}", name, hyper, run, problem))
    return found


def method_is_right(case: str, name: str, hyper: dict, run, problem) -> None:
    """Compare a method's parameters after each round with its reference's."""
    import numpy as np

    from method_table import METHODS

    row = METHODS[name]
    if case not in REFERENCES:
        REFERENCES[case] = row.reference(problem, **hyper)
    ours = run(row.recipe(**hyper), problem)
    for mine, theirs in zip(ours, REFERENCES[case], strict=True):
        assert np.allclose(mine.params.numpy(), theirs, rtol=1e-12, atol=1e-12)


def mean_is_right() -> None:
    """Compare an average with weights with what it says."""
    import torch

    from fedlada import average
    from fedlada.methods.state import Upload

    one, other = torch.linspace(-1, 2, 5, dtype=torch.float64), torch.linspace(3, -4, 5, dtype=torch.float64)
    mean = average([Upload(one, ()), Upload(other, ())], [1.0, 3.0]).delta
    assert torch.allclose(mean, (one + 3 * other) / 4, rtol=1e-12)
