"""Starts `fedlada` commands without the seconds that importing torch takes: each is a fork of a process that has.

Reads one JSON request a line: arguments, working directory, the files for standard output and error, a program where
that is not `fedlada`, and the environment of each process to start, more than one if they are to work together. Forks,
runs the command in the children as `python -m fedlada` or `python program` would, and answers with the first exit code
that is not zero. One that is to run in the background is answered with its process number at once; a request with that
number as `poll` is answered with its exit code, or with null as long as it runs.

It has imported everything and started nothing: no thread is lost by the fork.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
import weakref
from functools import partial
from pathlib import Path

# Imported before the fork, else in every one.
import dp_accounting  # noqa: F401
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import scipy.special  # noqa: F401
import torch
import torch._dynamo.compiled_autograd  # torch imports it when it is used, else in every fork
import torch.distributed.tensor  # as the one above

import fedlada.workbench.cli

for place, _ in fedlada.workbench.cli.COMMANDS.values():
    importlib.import_module(place.partition(":")[0])
for finalizer in weakref.finalize._registry:  # torch would take back each of its operators when a fork ends
    if finalizer.peek()[1] is torch.library._del_library:
        finalizer.atexit = False


def run(request: dict, environment: dict) -> None:
    """In the child: become the command."""
    if request["session"]:
        os.setsid()  # the first terminal that it opens is then its own
    # The tests themselves may run under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for number, path in enumerate((request["in"], request["out"], request["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    program = request["program"]
    sys.path.insert(0, str(Path(program).parent) if program else request["cwd"])  # as python does
    sys.argv = [program or "fedlada", *request["arguments"]]
    code: object = 0 if program else 99
    try:
        # Its workers import what they find as the main module: the command, and not this file with all that it imports.
        run_main = runpy.run_path if program else partial(runpy.run_module, alter_sys=True)
        run_main(program or "fedlada", run_name="__main__")
    except SystemExit as exit:
        code = exit.code
        if isinstance(code, str):  # as python does
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code if isinstance(code, int) else 0)


def serve() -> None:
    """Until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    ended: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            answer = _poll(request["poll"], ended)
        else:
            children = []
            for environment in request["environments"]:
                children.append(os.fork())
                if children[-1] == 0:
                    run(request, environment)
                ended.pop(children[-1], None)  # an older process of that number
            answer = children[0] if request["background"] else _first_failure(set(children), ended)
        print(json.dumps(answer), file=answers, flush=True)


def _poll(child: int, ended: dict[int, int]) -> int | None:
    """The exit code of a process in the background, if it has ended."""
    if child not in ended:
        done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            return None
        ended[child] = os.waitstatus_to_exitcode(status)
    return ended[child]


def _first_failure(children: set[int], ended: dict[int, int]) -> int:
    """Wait for all; when one fails the others, which would wait for it, are ended."""
    failure = 0
    while children:
        child, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        if child not in children:  # one in the background
            ended[child] = code
            continue
        children.discard(child)
        if code and not failure:
            failure = code
            for other in children:
                os.kill(other, signal.SIGKILL)
    return failure


if __name__ == "__main__":
    serve()
