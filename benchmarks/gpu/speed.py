"""The stacked engine on one GPU: step and round times, growth with clients and model size, memory, where time goes.

    python benchmarks/gpu/speed.py [--out DIR] [--only first,steps,methods,extensions,growth,profile,long,messages]

Images are random bytes of the right shape: time does not depend on what they show. A step is one local step of all ten
clients with a batch of 50 each, with clipping at norm 10 and L2; a round of CIFAR-10 has 50 of them, one of CIFAR-100
and TinyImageNet 20 and 40. Times of steps are CUDA events around replayed graphs, times of rounds wall clock, host
included.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from fedlada import models, recipes
from fedlada.data import IID, Augmentation, Images, LocalWork, as_samples
from fedlada.engines import SequentialEngine, StackedEngine
from fedlada.engines.evaluation import EvaluationOptions
from fedlada.engines.stacked.stack import Stack
from fedlada.federation.cohorts import FixedSize
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import as_schedule
from fedlada.methods.local import LocalTransform
from fedlada.training.simulation import Simulation

GPU = torch.device("cuda")
HABITS = {"clip_norm": 10.0}
PARENTS = {
    "feddyn": "scaffold",
    "fedlesam": "fedcm",
    "fedsam": "fedavg",
    "mofedsam": "fedcm",
    "fedgamma": "scaffold",
    "fedspeed": "feddyn",
    "fedsmoo": "feddyn",
    "fedlada_sam": "fedlada",
}
"""Methods and those whose step theirs is compared with."""
METHODS = {
    "fedavg": (recipes.fedavg(weight_decay=1e-3, **HABITS), 0.1),
    "fedcm": (recipes.fedcm(weight_decay=1e-3, **HABITS), 0.1),
    "scaffold": (recipes.scaffold(weight_decay=1e-3, **HABITS), 0.1),
    "fedlada": (recipes.fedlada(weight_decay=1e-2, **HABITS), 0.001),
}
MEASURED = tuple(METHODS)
TURNS = 3
METHODS |= {
    name: (recipes.RECIPES[name](weight_decay=1e-2, **HABITS), 0.001 if name == "fedlada_sam" else 0.1)
    for name in PARENTS
}


@dataclass(frozen=True)
class Momentum(LocalTransform):
    """A user's own transform: a state of one vector, and no declaration."""

    beta: float = 0.9

    def begin(self, shared, kept, like):
        return {"momentum": torch.zeros_like(like)}

    def apply(self, update, local, step):
        momentum = self.beta * local["momentum"] + update
        return momentum, {"momentum": momentum}


PLAIN = METHODS["fedavg"][0]
EXTENSIONS = {
    "momentum": (replace(PLAIN, name="momentum", local=(*PLAIN.local, Momentum())), 0.01),
}
SHAPES = {"cifar10": (32, 10, 5, 500), "cifar100": (32, 100, 2, 500), "tinyimagenet": (64, 200, 2, 1000)}


def data(name: str, num_clients: int = 100) -> tuple[Images, Images]:
    size, classes, _, each = SHAPES[name]
    random = np.random.default_rng(0)

    def images(count: int, augmentation: Augmentation | None) -> Images:
        x = random.integers(0, 256, (count, 3, size, size), dtype=np.uint8)
        return Images(x, random.integers(0, classes, count), (0.5,) * 3, (0.25,) * 3, augmentation)

    return images(each * num_clients, Augmentation(padding=size // 8)), images(10_000, None)


class Federation:
    """A simulation on random images, with the cohort size asked for."""

    def __init__(self, shape: str, cohort: int = 10, num_clients: int = 100) -> None:
        self.classes, self.epochs = SHAPES[shape][1:3]
        train, test = data(shape, num_clients)
        self.samples, self.test = (as_samples(one, GPU, torch.float32) for one in (train, test))
        self.clients = IID(num_clients=num_clients).assign(train.y, 0)
        self.cohort = cohort

    def simulation(
        self,
        method: str,
        *,
        engine: type = StackedEngine,
        model: object = None,
        messages: str = "float32",
        eval_every: int = 10**9,
        **options,
    ) -> Simulation:
        torch.manual_seed(0)
        rule, lr = {**METHODS, **EXTENSIONS}[method]
        if engine is StackedEngine:
            options["cohort_size"] = self.cohort
        made = engine(model or models.resnet18_gn(self.classes), rule, self.samples, None, device=GPU, **options)
        plan = Plan(
            clients=self.clients,
            cohorts=FixedSize(self.cohort),
            work=LocalWork(batch_size=50, epochs=self.epochs),
            schedule=as_schedule(lr, 0.998),
        )
        return Simulation(made, plan, self.test, evaluation=EvaluationOptions(eval_every=eval_every), messages=messages)


def free() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def seconds_a_round(simulation: Simulation, rounds: int) -> float:
    done = simulation.round
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        simulation.run_round()
    torch.cuda.synchronize()
    assert simulation.round == done + rounds
    return (time.perf_counter() - start) / rounds


def first_stack(simulation: Simulation) -> Stack:
    assert isinstance(simulation.engine, StackedEngine)
    return next(iter(simulation.engine.stacks.values()))


def step_ms(simulation: Simulation, steps: int = 60) -> float:
    stack = first_stack(simulation)
    graph = stack.graphs[True]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stack.step_number.zero_()
    start.record()
    for _ in range(steps):
        stack.step_number.zero_()
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps


def measure(federation: Federation, method: str, rounds: int = 4, **options) -> dict:
    free()
    began = time.perf_counter()
    simulation = federation.simulation(method, **options)
    simulation.run_round()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    per_round = seconds_a_round(simulation, rounds)
    result = {"step_ms": step_ms(simulation), "round_s": per_round, "first_s": first}
    result["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    start = time.perf_counter()
    simulation.engine.evaluate(simulation.server.params, federation.test, {})
    start = time.perf_counter()
    simulation.engine.evaluate(simulation.server.params, federation.test, {})
    result["evaluation_s"] = time.perf_counter() - start
    return result


def first() -> list[dict]:
    """The first FedLADA round of a process and its preparation: with no kernel cached, then with all.

    A process before it compiles the Python files of torch and Triton, as pip does when it installs them; some machines
    come without that, and every process compiles them again then.
    """
    code = "import speed; print(speed.measure(speed.Federation('cifar10'), 'fedlada', 1, precision='bf16')['first_s'])"
    here = os.pathsep.join([str(Path(__file__).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        for number, kernels in enumerate(("none cached, Python files neither", "none cached", "cached")):
            kept = f"{folder}/{min(number, 1)}"
            caches = {"TRITON_CACHE_DIR": f"{kept}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{kept}/inductor"}
            environment = {**plain, **caches, "PYTHONPATH": here, "PYTHONPYCACHEPREFIX": f"{folder}/python"}
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            rows.append({"kernels": kernels, "first_s": float(done.stdout.split()[-1])})
    return rows


def steps() -> list[dict]:
    rows = []
    for shape in SHAPES:
        federation = Federation(shape)
        for method in MEASURED if shape != "tinyimagenet" else ("fedavg", "fedlada"):
            both = shape == "cifar10" and method in ("fedavg", "fedlada")
            for precision in ("bf16", "tf32") if both else ("bf16",):
                rows.append({"shape": shape, "method": method, "precision": precision})
                rows[-1] |= measure(federation, method, precision=precision)
                print(rows[-1], flush=True)
        if shape != "tinyimagenet":
            rows.append({"shape": shape, "method": "fedlada", "precision": "bf16, nothing compiled"})
            rows[-1] |= measure(federation, "fedlada", rounds=2, num_steps=10)
            print(rows[-1], flush=True)
    return rows


def methods() -> list[dict]:
    """Steps of the other methods beside those of their parents: two gradients cost less than twice.

    Several turns in different orders: with some methods a step takes a tenth longer in one order than in another.
    """
    federation, names = Federation("cifar10"), [*MEASURED, *PARENTS]
    found: dict[str, list[dict]] = {name: [] for name in names}
    for turn in range(TURNS):
        first = turn * len(names) // TURNS
        for method in names[first:] + names[:first]:
            found[method].append(measure(federation, method, precision="bf16"))
            print(turn, method, found[method][-1], flush=True)
    rows = {}
    for name, own in found.items():
        steps = [one["step_ms"] for one in own]
        rows[name] = {"method": name} | own[0] | {"step_ms": statistics.median(steps), "each_step_ms": steps}
        rows[name]["round_s"] = statistics.median(one["round_s"] for one in own)
    for name, parent in PARENTS.items():
        ratio = rows[name]["step_ms"] / rows[parent]["step_ms"]
        rows[name] |= {"gradients": METHODS[name][0].gradients_per_step, "parent": parent, "ratio": ratio}
    return list(rows.values())


def extensions() -> list[dict]:
    """A transform of a user's own, also with its update as it is written."""
    federation, rows = Federation("cifar10"), []
    for method in ("fedavg", *EXTENSIONS):
        rows.append({"method": method} | measure(federation, method, precision="bf16"))
        print(rows[-1], flush=True)
    with patch("fedlada.engines.stacked.stack.compiled", lambda update, _: update):
        rows.append({"method": "momentum, update not compiled"} | measure(federation, "momentum", precision="bf16"))
    print(rows[-1], flush=True)
    return rows


def one_by_one() -> list[dict]:
    """The sequential engine: one client after another in eager PyTorch, as a user would write it."""
    rows = []
    for shape in ("cifar10", "cifar100"):
        federation = Federation(shape)
        for method in ("fedavg", "fedlada"):
            free()
            simulation = federation.simulation(method, engine=SequentialEngine)
            simulation.run_round()
            rows.append({"shape": shape, "method": method, "round_s": seconds_a_round(simulation, 1)})
            print(rows[-1], flush=True)
    return rows


def growth() -> list[dict]:
    rows = []
    for cohort in (1, 2, 5, 10, 20, 50, 100):
        federation = Federation("cifar100", cohort=cohort)
        rows.append({"clients": cohort} | measure(federation, "fedlada", rounds=2))
        print(rows[-1], flush=True)
    for name, model in (
        ("cnn-gn", models.cnn_gn(10, input_shape=(3, 32, 32))),
        ("lenet", models.lenet(10)),
        ("resnet18-gn", models.resnet18_gn(10)),
        ("resnet18-gn, 3x3 stem", models.resnet18_gn(10, stem="cifar")),
    ):
        size = sum(one.numel() for one in model.parameters())
        rows.append({"model": name, "parameters": size} | measure(Federation("cifar10"), "fedlada", 2, model=model))
        print(rows[-1], flush=True)
    return rows


def profile() -> list[dict]:
    """GPU time of one step by kernel, and of the whole by part."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    simulation = Federation("cifar10").simulation("fedlada", precision="bf16")
    simulation.run_round()
    stack = first_stack(simulation)
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        stack.step_number.zero_()
        stack.step(masked=False)
        torch.cuda.synchronize()
    events = sorted(recorded.key_averages(), key=lambda one: -one.self_device_time_total)
    rows = [{"kernel": one.key[:80], "us": one.self_device_time_total, "count": one.count} for one in events[:16]]
    rest = events[16:]
    rows.append(
        {
            "kernel": "all others",
            "us": sum(one.self_device_time_total for one in rest),
            "count": sum(one.count for one in rest),
        }
    )
    return rows


def messages() -> list[dict]:
    """What codes cost in time: a FedLADA round of CIFAR-10's shapes whose messages travel in them."""
    federation, rows = Federation("cifar10"), []
    for code in ("float32", "bfloat16", "int8", "int4", "lean", "delta=top0.05"):
        rows.append({"messages": code} | measure(federation, "fedlada", rounds=6, precision="bf16", messages=code))
        print(rows[-1], flush=True)
    return rows


def long() -> list[dict]:
    """A stretch of the whole run: rounds with an evaluation every 10, wall clock, start-up apart."""
    simulation = Federation("cifar10").simulation("fedlada", precision="bf16", eval_every=10)
    simulation.run_round()
    simulation.run(10)
    torch.cuda.synchronize()
    start = time.perf_counter()
    simulation.run(210)
    torch.cuda.synchronize()
    spent = time.perf_counter() - start
    return [{"rounds": 200, "seconds": spent, "seconds for 1500 rounds": 7.5 * spent}]


PARTS = {
    "first": first,
    "steps": steps,
    "methods": methods,
    "extensions": extensions,
    "one_by_one": one_by_one,
    "growth": growth,
    "profile": profile,
    "long": long,
    "messages": messages,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--only", default=",".join(PARTS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)  # before anything is measured
    name = torch.cuda.get_device_name()
    result = {"gpu": name, "torch": torch.__version__, "python": platform.python_version(), "date": str(date.today())}
    result["command"] = "python " + " ".join(sys.argv)
    for part in given.only.split(","):
        result[part] = PARTS[part]()
        print(part, json.dumps(result[part]), flush=True)
        (given.out / "speed.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
