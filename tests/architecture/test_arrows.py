"""Arrows point one way: which part of the library may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedlada

ROOT = Path(fedlada.__file__).parent
CORE = {"state", "validation"}
DATA = {"data", "randomness", "validation"}
ENGINES = {"engines", "method", "flat", "data", "messages", "plan", "evaluation", "probe", "randomness", "state"}
ENGINES |= {"layers", "trial", "validation"}

MAY_IMPORT: dict[str, set[str]] = {
    "state": set(),
    "validation": {"words"},
    "words": set(),
    "randomness": set(),
    "schedules": {"validation"},
    "local": {"local", *CORE},
    "server": {"server", *CORE},
    "held": {"local", "server", *CORE},
    "combine": {"combine", *CORE},
    "method": {"combine", "held", "local", "server", *CORE},
    "trial": {"held", "local", "method", "randomness", *CORE},
    "recipes": {"method", "local", "server", *CORE},
    "flat": set(),
    "torch_optimizer": {"flat", "method", "state"},
    "layers": set(),
    "models": {"models", "layers", "validation"},
    "data": DATA,
    "cohorts": {"randomness", "validation"},
    "plan": {"cohorts", "data", "randomness", "schedules", "validation"},
    "evaluation": {"data"},
    "probe": {"data", "evaluation", "flat"},
    "messages": {"messages", "method", "randomness", *CORE},
    "engines": ENGINES,
    "history": {"method", "state", "report"},
    "flower": {"flower", "api", "cohorts", "simulation", "observers", "history", "runs", "schedules", *ENGINES},
}
"""Packages and modules of the lower half; what is not listed here stands on top and may import anything."""

THIRD_PARTY_OF_THE_CORE = {"combine", "held", "method", "recipes", "local", "server", "state", "validation", "words"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        yield path, path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(("path", "part"), list(modules()), ids=lambda value: str(value).split("fedlada/")[-1])
def test_imports_follow_the_arrows(path, part):
    if part not in MAY_IMPORT:
        return
    for name in imports(path):
        if name.startswith("fedlada."):
            assert name.split(".")[1] in MAY_IMPORT[part], f"{part} must not import {name}"


def test_methods_import_torch_alone():
    allowed = {"torch", "fedlada", *sys.stdlib_module_names}
    for path, part in modules():
        if part in THIRD_PARTY_OF_THE_CORE:
            assert {name.split(".")[0] for name in imports(path)} <= allowed, path


def test_flower_is_imported_by_its_public_modules_and_in_one_place():
    """The rest of it moves between versions; who a process is can be told through no other."""
    public = {"flwr.app", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.clientapp"}
    for path, part in modules():
        used = {name for name in imports(path) if name.split(".")[0] == "flwr"}
        assert not used or part == "flower", path
        assert used <= public | ({"flwr.supercore.task_identity"} if path.name == "grid.py" else set()), path


def test_every_part_of_the_lower_half_exists():
    assert set(MAY_IMPORT) <= {part for _, part in modules()}


WITH_TORCH_AND_NUMPY_ALONE = """
import importlib.metadata, re, sys

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

ALLOWED = {"fedlada"}
todo = ["torch", "numpy"]
while todo:  # what torch itself needs is there too
    name = todo.pop()
    if name in ALLOWED:
        continue
    ALLOWED.add(name)
    try:
        requires = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        continue
    todo += [plain(re.match(r"[A-Za-z0-9_.-]+", one)[0]) for one in requires if "extra ==" not in one]
MODULES = {
    module for module, packages in importlib.metadata.packages_distributions().items()
    if not {plain(package) for package in packages} & ALLOWED
}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MODULES:
            raise ModuleNotFoundError(f"{name} is not installed")

assert {"rich", "click", "sklearn", "matplotlib", "safetensors", "pandas"} <= MODULES
sys.meta_path.insert(0, Refuse())

import numpy, torch, fedlada
x = numpy.random.default_rng(0).standard_normal((60, 4))
result = fedlada.simulate(torch.nn.Linear(4, 2), (x, (x[:, 0] > 0).astype(int)), test=(x, (x[:, 0] > 0).astype(int)),
                          method="fedlada", rounds=3, progress=True)
print(len(result.history))
"""


def test_importing_and_simulating_need_torch_and_numpy_alone():
    run = subprocess.run(
        [sys.executable, "-c", WITH_TORCH_AND_NUMPY_ALONE], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "3"


def test_files_stay_small():
    lengths = {path: len(path.read_text().splitlines()) for path, _ in modules()}
    assert {path: lines for path, lines in lengths.items() if lines > 350} == {}
