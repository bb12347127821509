"""Plants one fault after another in a copy of the library and says which of them the reference check misses.

Run as a program: it imports each faulty copy in place of the real one. Prints the names of faults that no check caught
by a wrong value. One check that fails is enough, and what caught a fault is asked first of the next one, which often
lies in the same place.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src" / "fedlada"

METHOD, AMSGRAD = "methods/method.py", "methods/local/amsgrad.py"
DECAY, DYNAMIC = "methods/local/weight_decay.py", "methods/local/dynamic_regularizer.py"

ENGINE_FAULTS: dict[str, tuple[str, str, str]] = {
    "engine: steps not weighted": (
        "engines/tally.py",
        "self.steps / total",
        "self.steps / sum(w * w for w in self.weights)",
    ),
    "engine: K of the first client": (
        "engines/sequential.py",
        "self.method.finish(local, work.num_steps)",
        "self.method.finish(local, 1)",
    ),
    "engine: gradients accumulate": ("models/flat.py", "self.gradient.zero_()", "pass"),
    "engine: parameters not loaded": (
        "engines/sequential.py",
        "self.flat.load(point)",
        "pass",
    ),
    "engine: memory not kept": ("training/simulation.py", "self.kept.update(result.kept)", "pass"),
    "engine: uploads all weigh the same": (
        "engines/tally.py",
        "self.weights.append(weight)",
        "self.weights.append(1.0)",
    ),
    "simulation: participation by number": (
        "training/simulation.py",
        "result.weight / self.plan.total_weight",
        "len(result.accepted) / self.plan.num_clients",
    ),
    "simulation: rate of the first round": ("training/simulation.py", "lr=plan.lr,", "lr=self.plan.round(1).lr,"),
}

FAULTS: dict[str, tuple[str, str, str]] = {
    **ENGINE_FAULTS,
    "local step uphill": (METHOD, "local.params - local.lr * update", "local.params + local.lr * update"),
    "delta points downhill": (
        METHOD,
        "delta=local.anchor - local.params",
        "delta=local.params - local.anchor",
    ),
    "server step uphill": ("methods/server.py", "params - self.lr * delta", "params + self.lr * delta"),
    "server rate forgotten": ("methods/server.py", "params - self.lr * delta", "params - delta"),
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
        "m = m / (1 - self.beta1**tau)",
        "m = m / (1 - self.beta1**(tau + 1))",
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
        "mean_step - self.correction * (",
        "mean_step - (",
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
    "norm over all stacked clients": ("methods/local/clip_norm.py", "dim=-1, keepdim=True", "keepdim=True"),
    "mean across clients": (
        AMSGRAD,
        "* update * update",
        "* (update * update).mean(0, keepdim=True)",
    ),
    "server adam: beta swapped": (
        "methods/server.py",
        'self.beta1 * state["m"] + (1 - self.beta1) * delta',
        '(1 - self.beta1) * state["m"] + self.beta1 * delta',
    ),
    "server adam: tau inside the root": ("methods/server.py", "(v.sqrt() + self.tau)", "(v + self.tau).sqrt()"),
    "mean is a sum": ("methods/combine/mean.py", "tensor / total_weight", "tensor"),
    "weights ignored": ("methods/combine/mean.py", "float(weights[index])", "1.0"),
    "dynamic regularizer: sign of h": (
        DYNAMIC,
        '+ step.kept["h"])',
        '- step.kept["h"])',
    ),
    "dynamic regularizer: h of the last round alone": (
        DYNAMIC,
        'step.kept["h"] - done.delta',
        "-done.delta",
    ),
    "dynamic average: participation forgotten": ("methods/server.py", "round.participation * delta", "delta"),
    "dynamic average: H forgotten": ("methods/server.py", "params - delta + h,", "params - delta,"),
    "looks downhill": ("methods/local/sharpness_aware.py", "point + gradient", "point - gradient"),
    "look: norm over all stacked clients": ("methods/local/sharpness_aware.py", "dim=-1, keepdim=True", "keepdim=True"),
    "look forgotten": (
        METHOD,
        "gradient_at(point))\n\n    def look",
        "gradient_at(local.params))\n\n    def look",
    ),
    "clip after L2": ("methods/recipes.py", "return clip + decay", "return decay + clip"),
    "correction after clipping": (
        "methods/recipes.py",
        "correction + _clip_and_decay(clip_norm, weight_decay)",
        "_clip_and_decay(clip_norm, weight_decay) + correction",
    ),
    "amendment before AMSGrad": ("methods/recipes.py", "optimizer, *amendment,", "*amendment, optimizer,"),
    "decoupled decay as L2": (
        "methods/recipes.py",
        "(0.0, weight_decay) if decoupled",
        "(weight_decay, 0.0) if decoupled",
    ),
}


REFERENCES: dict[str, list] = {}
"""What the references give, by check: NumPy alone, which no fault in the library can change."""


def checks() -> dict[str, Callable[[], bool]]:
    """What must hold with the library that `import fedlada` finds now: the methods, the mean, the engine."""
    from driver import run_method, run_method_stacked
    from equivalence import test_engine_equals_reference as suite
    from method_table import CASES
    from reference.problem import make_problem

    found: dict[str, Callable[[], bool]] = {"mean": mean_is_right}
    for name in ("scaffold", "fedlada"):
        found[f"engine {name}"] = partial(holds, suite.test_simulation_equals_reference, name)
    for method, reference in suite.WEIGHTED:
        test = suite.test_weights_by_examples_equal_a_weighted_reference
        found[f"weighted {method.name}"] = partial(holds, test, method, reference)
    runs = {"one by one": (run_method, make_problem(seed=1))}
    runs["stacked"] = (run_method_stacked, make_problem(seed=2, equal_steps=True))
    for name, hyper in CASES:
        for how, (run, problem) in runs.items():
            case = f"{name} {hyper} {how}"
            found[case] = partial(method_is_right, case, name, hyper, run, problem)
    return found


def method_is_right(case: str, name: str, hyper: dict, run, problem) -> bool:
    """Whether a method has its reference's parameters after each round."""
    import numpy as np

    from method_table import METHODS

    row = METHODS[name]
    if case not in REFERENCES:
        REFERENCES[case] = row.reference(problem, **hyper)
    ours = run(row.recipe(**hyper), problem)
    pairs = zip(ours, REFERENCES[case], strict=True)
    return all(np.allclose(mine.params.numpy(), theirs, rtol=1e-12, atol=1e-12) for mine, theirs in pairs)


def mean_is_right() -> bool:
    """Whether an average with weights is what it says."""
    import torch

    from fedlada import average
    from fedlada.methods.state import Upload

    one, other = torch.linspace(-1, 2, 5, dtype=torch.float64), torch.linspace(3, -4, 5, dtype=torch.float64)
    mean = average([Upload(one, ()), Upload(other, ())], [1.0, 3.0]).delta
    return torch.allclose(mean, (one + 3 * other) / 4, rtol=1e-12)


def holds(test: Callable[..., None], *arguments: object) -> bool:
    """Whether a test of the suite itself passes."""
    try:
        test(*arguments)
    except AssertionError:
        return False
    return True


IMPORTS_THE_LIBRARY = ("fedlada", "driver", "method_table", "reference", "equivalence", "tasks")


def forget_library() -> None:
    for name in [n for n in sys.modules if n.split(".")[0] in IMPORTS_THE_LIBRARY]:
        del sys.modules[name]


def is_caught(order: list[str]) -> bool:
    """Whether a check finds a wrong value, in this order and then the others; the one that does is put first."""
    found, errors = checks(), []
    order += [name for name in found if name not in order]
    for name in order:
        try:
            right = found[name]()
        except Exception as error:  # says that something is wrong, but is no wrong value: another check may find it
            errors.append(error)
            continue
        if not right:
            order.remove(name)
            order.insert(0, name)
            return True
    if errors:
        raise errors[0]
    return False


def main() -> None:
    sys.path.insert(0, str(TESTS))
    order: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "fedlada"
        sys.path.insert(0, folder)
        for fault, (file, old, new) in {"none": (METHOD, "", ""), **FAULTS}.items():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(SOURCE, copy)  # with what is compiled: only the changed file is compiled again
            text = (copy / file).read_text()
            if text.count(old) < 1:
                print(f"stale: {fault}")
                continue
            (copy / file).write_text(text.replace(old, new))
            forget_library()
            try:
                caught = is_caught(order)
            except Exception as error:
                print(f"an error instead of a wrong value: {fault}: {error}")
                continue
            if caught is (fault == "none"):
                print(f"{'false alarm' if caught else 'missed'}: {fault}")


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    main()
