"""Plants one fault after another in the library and says which of them the suite's own tests miss.

Run as a program with the names of groups (see `reference.faults`; without one all): it imports the library and the
group's checks once, and forks a process for each fault. There the faulty code takes the place of the right one in the
functions themselves, wherever they have been imported to. Prints the faults that no check of their group caught by a
wrong value. One check that fails is enough: first the one that is known to catch the fault (`caught_by.json`, written
with `--remember`), then what caught the last one, then the others from the quickest on. A check that is remembered
wrongly costs time and nothing else.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import torch
import torch._dynamo.compiled_autograd  # torch imports it when it is used, else in every fork
import torch.distributed.tensor  # as the one above

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src" / "fedlada"
CAUGHT_BY = Path(__file__).with_name("faults") / "caught_by.json"

Functions = dict[tuple[str, str, int], list[FunctionType]]
Planted = list[tuple[FunctionType, CodeType]]


def main(groups: list[str]) -> None:
    """Print what is missed in each of these groups."""
    sys.path.insert(0, str(TESTS))
    from reference.faults import GROUPS

    remember = "--remember" in groups
    groups = [name for name in groups if name != "--remember"]
    known = json.loads(CAUGHT_BY.read_text()) if CAUGHT_BY.exists() else {}
    for name in groups or GROUPS:
        group = importlib.import_module(f"reference.faults.{name}")
        known[name] = try_group(group, known.get(name, {}))
    if remember:
        CAUGHT_BY.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def try_group(group, known: dict[str, str]) -> dict[str, str]:
    """Plant every fault of a group and say by which check each was caught; without any, these find nothing wrong."""
    for file, _, _ in group.FAULTS.values():
        importlib.import_module(f"fedlada.{file.removesuffix('.py').replace('/', '.')}")
    checks, functions = group.checks(), functions_of_the_library()
    names = [name_of(check) for check in checks]
    seconds: dict[int, float] = {}
    caught_by: dict[str, str] = {}
    caught: set[int] = set()
    for fault, change in group.FAULTS.items():
        try:
            planted = faulty(functions, *change)
        except LookupError as error:
            print(f"stale: {fault}: {error}")
            continue
        order = sorted(
            range(len(checks)), key=lambda number: (names[number] != known.get(fault), seconds.get(number, 0.0))
        )
        answer = in_a_fork(planted, checks, order)
        seconds |= dict(answer["seconds"])
        if answer["caught"] is not None:
            caught_by[fault] = names[answer["caught"]]
            caught.add(answer["caught"])
            seconds[answer["caught"]] = 0.0  # it may well catch the next one
        elif answer["error"]:
            print(f"an error instead of a wrong value: {fault}: {answer['error']}")
        else:
            print(f"missed: {fault}")
    answer = in_a_fork([], checks, sorted(caught))
    if answer["caught"] is not None or answer["error"]:
        print(f"false alarm: {answer['caught']} {answer['error']}")
    return caught_by


def name_of(check: object) -> str:
    """A test with what it is called with; by it a check is known when others have come before it."""
    if isinstance(check, partial):
        return " ".join(map(name_of, (check.func, *check.args, *check.keywords.values())))
    if isinstance(check, (str, int, float)):
        return str(check)
    return getattr(check, "__qualname__", type(check).__qualname__)


def faulty(functions: Functions, file: str, old: str, new: str) -> Planted:
    """The functions that a fault changes, each with the code that it has then; a fault changes nothing else."""
    path = SOURCE / file
    text = path.read_text()
    if old not in text or old == new:
        raise LookupError("its file has no such words")
    before, after = (compile(one, str(path), "exec", dont_inherit=True) for one in (text, text.replace(old, new)))
    changed = list(differences(before, after))
    if not changed or any(place(one) not in functions for one, _ in changed):
        raise LookupError("it must change the bodies of functions, and nothing else")
    return [(function, other) for one, other in changed for function in functions[place(one)]]


def differences(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Pairs of the code of those functions, not of the functions in them, that is another, wherever its lines are."""
    if (shown(before) != shown(after)) if before.co_flags & CO_OPTIMIZED else (alone(before) != alone(after)):
        yield before, after
    elif not before.co_flags & CO_OPTIMIZED:  # a module or a class
        for one, other in zip(inside(before), inside(after), strict=True):
            yield from differences(one, other)


def shown(code: CodeType) -> list[object]:
    """All that code says, with the functions in it."""
    return [alone(code), *map(shown, inside(code))]


def alone(code: CodeType) -> list[object]:
    """All that code says itself."""
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    constants = [one.co_name if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return [code.co_code, names, counts, constants, code.co_exceptiontable]


def inside(code: CodeType) -> list[CodeType]:
    """The code of the functions and classes in it."""
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def place(code: CodeType) -> tuple[str, str, int]:
    """What tells one function's code from all others."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def functions_of_the_library() -> Functions:
    """Every function that there is, by its place, whoever has imported or wrapped it."""
    found: Functions = defaultdict(list)
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename.startswith(str(SOURCE)):
            found[place(one.__code__)].append(one)
    return found


def in_a_fork(planted: Planted, checks: list, order: list[int]) -> dict:
    """Which of the checks finds a wrong value first, in a process of its own with a fault; how long each took."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for function, code in planted:
                function.__code__ = code
            answer = caught_at(checks, order)
        except BaseException as error:
            answer = {"caught": None, "error": f"{type(error).__name__}: {error}", "seconds": []}
        with os.fdopen(writer, "w") as file:
            json.dump(answer, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(text) if text else {"caught": None, "error": f"exit code {status}", "seconds": []}


def caught_at(checks: list, order: list[int]) -> dict:
    """The first check that finds a wrong value, by number; else the first error."""
    seconds, first = [], ""
    for number in order:
        start, error = time.process_time(), None
        try:
            with redirect_stdout(io.StringIO()):
                checks[number]()
        except (Exception, pytest.fail.Exception) as raised:
            if is_a_wrong_value(raised):
                return {"caught": number, "error": "", "seconds": seconds}
            error = raised  # says that something is wrong, but is no wrong value: another check may find it
        seconds.append((number, time.process_time() - start))
        first = first or (f"{type(error).__name__}: {error}" if error else "")
    return {"caught": None, "error": first, "seconds": seconds}


def is_a_wrong_value(error: BaseException | None) -> bool:
    """Whether a test found one; a warning that is missing too does not hide it, nor is it one alone."""
    if isinstance(error, pytest.fail.Exception):  # `pytest.warns` raises it in place of what its block raised
        error = error.__context__
    return isinstance(error, AssertionError) and not is_of_the_library(error)


def is_of_the_library(error: BaseException) -> bool:
    """Whether the library itself raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return SOURCE in Path(frame.f_code.co_filename).parents


if __name__ == "__main__":
    torch.set_num_threads(1)  # a fork of a process whose threads have worked would wait for them
    main(sys.argv[1:])
