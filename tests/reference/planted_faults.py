"""Plants one fault after another in a copy of the library and says which of them the suite's own tests miss.

Run as a program with the names of groups (see `reference.faults`; without one all): it imports each faulty copy in
place of the real one, and prints the faults that no check of their group caught by a wrong value. One check that fails
is enough: first the one that is known to catch the fault (`caught_by.json`, written with `--remember`), then what
caught the last one, then the others from the quickest on. A check that is remembered wrongly costs time and nothing
else.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stdout
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src" / "fedlada"
CAUGHT_BY = Path(__file__).with_name("faults") / "caught_by.json"


def main(groups: list[str]) -> None:
    """Print what is missed in each of these groups."""
    remember = "--remember" in groups
    groups = [name for name in groups if name != "--remember"]
    known = json.loads(CAUGHT_BY.read_text()) if CAUGHT_BY.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        sys.path[:0] = [folder, str(TESTS)]
        from reference.faults import GROUPS

        copy = Path(folder) / "fedlada"
        shutil.copytree(SOURCE, copy)
        for name in groups or GROUPS:
            group = importlib.import_module(f"reference.faults.{name}")
            known[name] = try_group(group, copy, known.get(name, {}))
    if remember:
        CAUGHT_BY.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def try_group(group, copy: Path, known: dict[str, int]) -> dict[str, int]:
    """Plant every fault of a group and say by which check each was caught; without any, nothing may be wrong."""
    seconds: dict[int, float] = {}
    caught_by: dict[str, int] = {}
    for fault, (file, old, new) in {"none": ("__init__.py", "", ""), **group.FAULTS}.items():
        # What is compiled is told from what was changed by its time; a faulty file is never stored compiled.
        sys.dont_write_bytecode = fault != "none"
        text = (SOURCE / file).read_text()
        if old not in text or (old == new and fault != "none"):
            print(f"stale: {fault}")
            continue
        if fault != "none":
            (copy / file).write_text(text.replace(old, new))
        forget_library()
        try:
            caught = caught_at(group, copy, seconds, known.get(fault))
        except Exception as error:
            print(f"an error instead of a wrong value: {fault}: {type(error).__name__}: {error}")
        else:
            if (caught is None) is (fault != "none"):
                print(f"{'missed' if caught is None else 'false alarm'}: {fault}")
            if caught is not None:
                caught_by[fault] = caught
        shutil.copy2(SOURCE / file, copy / file)
    return caught_by


def forget_library() -> None:
    """Let the next import read the library anew, and with it the tests, whatever folders they lie in."""
    own = {path.stem for path in TESTS.iterdir()} | {"fedlada"}
    for name in [name for name in sys.modules if name.split(".")[0] in own]:
        del sys.modules[name]


def caught_at(group, copy: Path, seconds: dict[int, float], known: int | None) -> int | None:
    """The check that finds a wrong value, by number; `seconds` are what each took, and none for the last that did."""
    import pytest

    found, errors = group.checks(), []
    for number in sorted(range(len(found)), key=lambda number: (number != known, seconds.get(number, 0.0))):
        start = time.process_time()
        try:
            with redirect_stdout(io.StringIO()):
                found[number]()
        except AssertionError as error:
            if not is_of(copy, error):
                seconds[number] = 0.0
                return number
            errors.append(error)
        except pytest.fail.Exception as error:  # what should have been refused was not: no wrong value either
            errors.append(RuntimeError(str(error)))
        except Exception as error:  # says that something is wrong, but is no wrong value: another check may find it
            errors.append(error)
        seconds[number] = time.process_time() - start
    if errors:
        raise errors[0]
    return None


def is_of(copy: Path, error: BaseException) -> bool:
    """Whether the library itself raised an error."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return copy in Path(frame.f_code.co_filename).parents


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
