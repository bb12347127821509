"""Digests of the user's own code in a run, to say on resuming that it has changed.

They are taken from bytecode: comments, docstrings and line numbers do not count, and no source file is needed. Bytecode
depends on the version of Python, so digests of two versions are not compared.
"""

from __future__ import annotations

import dis
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedlada.runs.parts import describe_value

if TYPE_CHECKING:
    from fedlada.training.simulation import Simulation

CODE = "code"
PYTHON = "python"
"""Key of the version of Python, among the names whose code was digested."""
SETTINGS = "model's attributes"
"""Key of numbers and texts that the layers hold, such as heads of attention, which are not in the model's text."""
LARGEST = 10_000
"""Most elements of a tensor that is a part of a function, as weights of classes are."""
SIMPLE = (int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device)
FIXED = (*SIMPLE, tuple, frozenset, FunctionType, MethodType, type, partial)
"""Values that count where a function finds them outside itself; lists and objects there may be its memory."""
SKIPPED = {"NOP", "RESUME", "CACHE", "EXTENDED_ARG"}
ABOUT = {"__doc__", "__firstlineno__", "__qualname__", "__static_attributes__"}
VARIADIC = CO_VARARGS | CO_VARKEYWORDS
GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}


def code_of(simulation: Simulation) -> dict[str, str]:
    """A digest of the model's layers, and of each of the user's own classes and functions that decide the run."""
    model = simulation.engine.model(simulation.server.params)
    found = {"model": [re.sub(r" at 0x\w+", "", repr(model))], SETTINGS: _settings(model)}
    for role, thing in [*_deciding(simulation), *((type(one).__qualname__, type(one)) for one in model.modules())]:
        try:
            text = _Reader().read(thing)
        except Exception:  # a user's own object can raise anything
            continue
        if re.search(r"\b(code|partial)\(", text):  # otherwise it is a library's, and the configuration has its name
            found.setdefault(_name(thing, role), []).append(text)
    digests = {name: hashlib.sha256("\n".join(own).encode()).hexdigest()[:16] for name, own in found.items()}
    return {PYTHON: "{}.{}".format(*sys.version_info), **digests}


def _settings(model: nn.Module) -> list[str]:
    """The plain attributes of each layer that only its making sets."""
    found, later = [], {kind: {"training"} | _set_later(kind) for kind in {type(one) for one in model.modules()}}
    for path, module in model.named_modules():
        held = {name: one for name, one in vars(module).items() if isinstance(one, SIMPLE) and name[:1] != "_"}
        found += [f"{path}.{name}={one!r}" for name, one in sorted(held.items()) if name not in later[type(module)]]
    return found


def changed(stored: Any, now: Mapping[str, str]) -> list[str]:
    """Names whose code differs from the stored one; none where that is of another version of Python, or missing."""
    if not isinstance(stored, Mapping) or stored.get(PYTHON) != now.get(PYTHON):
        return []
    found = [name for name, digest in now.items() if stored.get(name, digest) != digest]
    return [name for name in found if name != SETTINGS or "model" not in found]  # other layers have other attributes


def _deciding(simulation: Simulation) -> Iterator[tuple[str, Any]]:
    """The parts of a run that can be a user's own, each with its role."""
    engine, plan = simulation.engine, simulation.plan
    method = engine.method
    yield "method", type(method)
    yield from (("method", part) for part in (*method.local, method.server, method.combiner))
    yield "loss", getattr(engine, "loss", None)
    yield from (("lr", one) for one in _callables(getattr(plan, "schedule", None)))
    yield from ((name, getattr(plan, name, None)) for name in ("cohorts", "unreliable"))
    yield "attack", simulation.attack
    yield from (item for one in simulation.measures.due for item in one.metrics.items())


def _callables(schedule: Any) -> Iterator[Any]:
    """A schedule, and those inside it."""
    yield schedule
    for one in fields(schedule) if is_dataclass(schedule) else ():
        if callable(inner := getattr(schedule, one.name)):
            yield from _callables(inner)


def _name(thing: Any, role: str) -> str:
    """The name of a function or class, or its role in the run if it has none."""
    inner = thing.func if isinstance(thing, partial) else thing
    name = str(getattr(inner, "__qualname__", type(inner).__qualname__)).rpartition("<locals>.")[2]
    return role if "<" in name else name


def _is_own(thing: Any) -> bool:
    """Whether a function, class or module is of the user: not of Python, of fedlada or of an installed package."""
    name = str(thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or "builtins")
    if name.partition(".")[0] in {"fedlada", "torch", *sys.stdlib_module_names} - {"__main__"}:
        return False
    return not re.search(r"[\\/](site|dist)-packages[\\/]", str(getattr(sys.modules.get(name), "__file__", None)))


class _Reader:
    """Reads a function, class or value as text that is equal wherever its code and plain values are."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def read(self, value: Any) -> str:
        """The text of a value; what is neither code nor plain is left out."""
        if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
            return self._named(value)
        if isinstance(value, MethodType):
            return f"{self.read(value.__func__)} of {self.read(value.__self__)}"
        if isinstance(value, partial):
            return f"partial({self.read(value.func)}, {self.read(value.args)}, {self.read(value.keywords)})"
        if isinstance(value, CodeType):
            return self._code(value)
        if isinstance(value, SIMPLE):
            return repr(value)
        if isinstance(value, Tensor):
            return describe_value(value) if value.numel() <= LARGEST else "tensor"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.read, value))}]"
        if isinstance(value, (set, frozenset)):
            return f"{{{', '.join(sorted(map(self.read, value)))}}}"
        if isinstance(value, Mapping):
            return f"{{{', '.join(sorted(f'{self.read(key)}: {self.read(one)}' for key, one in value.items()))}}}"
        return self._object(value)

    def _named(self, thing: Any) -> str:
        name = f"{thing.__module__}.{thing.__qualname__}"
        if not _is_own(thing) or id(thing) in self.seen or isinstance(thing, BuiltinFunctionType):
            return name
        self.seen.add(id(thing))
        return self._class(thing) if isinstance(thing, type) else self._function(thing)

    def _class(self, kind: type) -> str:
        inside = {
            name: getattr(value, "fget", None) or getattr(value, "__func__", value)
            for name, value in vars(kind).items()
        }
        own = [
            f"{name}={self.read(value)}"
            for name, value in sorted(inside.items())
            if isinstance(value, FunctionType) or (isinstance(value, FIXED) and not name.startswith("__"))
        ]
        return f"class({', '.join([*own, *(self.read(base) for base in kind.__bases__)])})"

    def _function(self, function: FunctionType) -> str:
        if function.__code__.co_filename == "<string>":  # as a dataclass makes them, of its fields
            return ""
        outside = _outside(function)
        values = [f"{name}={self.read(value)}" for name, value in sorted(outside.items()) if isinstance(value, FIXED)]
        defaults = self.read([function.__defaults__, function.__kwdefaults__])
        return f"{self._code(function.__code__)}, {defaults}, {', '.join(values)}"

    def _code(self, code: CodeType) -> str:
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        steps = [f"{one.opname} {self.read(one.argval)}" for one in _steps(code)]
        return f"code({arguments}, {code.co_flags & VARIADIC}, {'; '.join(steps)}, {code.co_exceptiontable.hex()})"

    def _object(self, value: Any) -> str:
        """An object of the user's own class: by its code, and by the plain attributes that only its making sets."""
        kind = type(value)
        if not _is_own(kind) or id(value) in self.seen:
            return kind.__qualname__
        self.seen.add(id(value))
        memory = _set_later(kind)
        held = getattr(value, "__dict__", {})
        kept = {name: one for name, one in held.items() if name not in memory and isinstance(one, (*FIXED, Tensor))}
        return f"{self.read(kind)} with {self.read(kept)}"


def _set_later(kind: type) -> set[str]:
    """The names of attributes that methods of a class set after its making: its memory."""
    methods = [
        one
        for own in kind.__mro__
        for name, one in (vars(own).items() if own is not nn.Module else ())
        if isinstance(one, FunctionType) and name not in ("__init__", "__post_init__")
    ]
    return {one.argval for method in methods for one in _steps(method.__code__) if one.opname == "STORE_ATTR"}


def _steps(code: CodeType) -> list[dis.Instruction]:
    """The instructions that do something; a class inside a function also stores its place and its docstring."""
    found: list[dis.Instruction] = []
    for one in dis.get_instructions(code):
        if one.opname == "STORE_NAME" and one.argval in ABOUT:
            found.pop()
        elif one.opname not in SKIPPED:
            found.append(one)
    return found


def _outside(function: FunctionType) -> dict[str, Any]:
    """Variables that a function finds outside itself and does not set: of the functions around it, and of modules."""
    steps, code = [], [function.__code__]
    while code:
        one = code.pop()
        steps += [step for step in _steps(one) if isinstance(step.argval, str)]
        code += [const for const in one.co_consts if isinstance(const, CodeType)]
    stored = {step.argval for step in steps if step.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    known = function.__globals__
    found = {step.argval: known[step.argval] for step in steps if step.opname in GLOBALS and step.argval in known}
    for module in [value for value in found.values() if isinstance(value, ModuleType) and _is_own(value)]:
        used = {step.argval for step in steps if step.opname in ATTRIBUTES} & set(vars(module))
        found |= {f"{module.__name__}.{name}": vars(module)[name] for name in used}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return {name: value for name, value in found.items() if name not in stored and not name.startswith("__")}
