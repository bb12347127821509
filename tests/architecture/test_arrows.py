"""Arrows point down: which room of the library may import which. Every file counts, and every import in it."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fedlada

ROOT = Path(fedlada.__file__).parent

LEVELS = [
    {"methods"},
    {"federation"},
    {"data", "models", "messages"},
    {"engines", "plots"},
    {"training"},
    {"runs"},
    {"api", "flower", "optim"},
    {"workbench"},
    {"paper"},
]
"""The rooms from the ground up; each may import those below it and itself."""
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
DOORS = {"__init__", "__main__"}
"""What stands in front of all rooms: the list of public names, and the command."""

ONLY_IN = {
    "click": {"workbench", "paper"},
    "rich": {"training", "workbench"},
    "matplotlib": {"plots"},
    "flwr": {"flower"},
    "dp_accounting": {"federation"},
    "safetensors": {"runs", "flower", "workbench"},
}
"""Other people's packages, and the rooms that may import them."""


@cache
def modules():
    """Every module by its name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(path):
    """What a file imports, inside functions and for type checkers too: modules by their whole name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append(whole if whole in modules() else node.module)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def room_of(name):
    return [*name.split("."), "__init__"][1]


INSIDE = {name: path for name, path in modules().items() if room_of(name) not in DOORS}


@pytest.mark.parametrize("name", INSIDE)
def test_arrows_point_down(name):
    room = room_of(name)
    for target in imports(INSIDE[name]):
        if target.startswith("fedlada."):
            other = room_of(target)
            assert other == room or LEVEL[other] < LEVEL[room], f"{name} must not import {target}"


def test_no_circle_of_files():
    graph = {name: {one for one in imports(path) if one in INSIDE} for name, path in INSIDE.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, with the circle


def test_the_rooms_are_those_on_record():
    assert {room_of(name) for name in INSIDE} == set(LEVEL)
    assert len(LEVEL) <= 14
    assert len(LEVELS) <= 9


def test_tests_mirror_the_rooms():
    tests = Path(__file__).parents[1]
    beside = {"architecture", "equivalence", "flower-app", "golden", "integration", "reference"}
    folders = {path.parent.relative_to(tests).parts[0] for path in tests.rglob("*/*.py")}
    assert folders - beside <= set(LEVEL)
    assert {path.name for path in tests.glob("test_*.py")} <= {f"test_{room}.py" for room in LEVEL}


def test_methods_import_torch_alone():
    allowed = {"torch", "fedlada", *sys.stdlib_module_names}
    for name, path in INSIDE.items():
        if room_of(name) == "methods":
            assert {one.split(".")[0] for one in imports(path)} <= allowed, name


def test_other_packages_stay_in_their_rooms():
    for name, path in INSIDE.items():
        for target in {one.split(".")[0] for one in imports(path)} & set(ONLY_IN):
            assert room_of(name) in ONLY_IN[target], f"{name} must not import {target}"


def test_every_public_name_is_in_one_list():
    assert sorted(fedlada.__all__) == sorted([*fedlada._MODULES, *fedlada._NAMES])


EACH_IN_A_FORK = """
import os, sys, torch
for name in sys.argv[1:]:
    if os.fork() == 0:
        exec(f"import fedlada.{name} as one, fedlada; assert one is fedlada.{name}, one")
        print(name, one.__spec__.name, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_public_modules_can_be_imported_by_their_public_name():
    """Each as the first of the library that a process imports; torch, which takes long, is there already."""
    program = [sys.executable, "-c", EACH_IN_A_FORK, *fedlada._MODULES]
    run = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    found = dict(line.split() for line in run.stdout.splitlines())
    assert found == {name: f"fedlada.{place}" for name, place in fedlada._MODULES.items()}, run.stderr


def test_flower_is_imported_by_its_public_modules_and_in_one_place():
    """The rest of it moves between versions; who a process is can be told through no other."""
    public = {"flwr.app", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.clientapp"}
    for path in INSIDE.values():
        used = {name for name in imports(path) if name.split(".")[0] == "flwr"}
        assert used <= public | ({"flwr.supercore.task_identity"} if path.name == "grid.py" else set()), path


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


@pytest.mark.slow
def test_importing_and_simulating_need_torch_and_numpy_alone():
    run = subprocess.run(
        [sys.executable, "-c", WITH_TORCH_AND_NUMPY_ALONE], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "3"


def test_files_stay_small():
    lengths = {path: len(path.read_text().splitlines()) for path in modules().values()}
    assert {path: lines for path, lines in lengths.items() if lines > 350} == {}
