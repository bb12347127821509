"""The command line. Exit codes: 0 done, 1 a run failed, 2 wrong usage; an error is a one-line message."""

from __future__ import annotations

import errno
import os
import sys

import click

from fedlada import __version__
from fedlada.workbench.cli import stand_in
from fedlada.workbench.cli.groups import LazyGroup
from fedlada.workbench.failures import own_place, show_traceback, told
from fedlada.workbench.words import asked_of_a_full_gpu

COMMANDS = {
    "run": ("fedlada.workbench.cli.run:run", "Run one method on one data set."),
    "resume": (
        "fedlada.workbench.cli.run:resume",
        "Resume a run that was stopped or killed; the result is the same as without the interruption.",
    ),
    "compare": (
        "fedlada.workbench.cli.compare:compare",
        "Compare methods: rounds and megabytes to a target accuracy, as a table, a plot and a report page.",
    ),
    "sweep": (
        "fedlada.workbench.cli.sweep:sweep_command",
        "Tune hyperparameters: run every combination and rank them on held-out training data.",
    ),
    "reproduce": (
        "fedlada.paper.reproduce:reproduce",
        "Reproduce tables and figures of the FedLADA paper: T1 to T8, F1 to F8, or all; theory, FLSIM and FEDOPT.",
    ),
    "pack": ("fedlada.workbench.cli.pack:pack", "Pack the runs of reproductions and sweeps into one small file."),
    "evaluate": (
        "fedlada.workbench.cli.evaluate:evaluate",
        "Evaluate a stored run's model: on the test set, by class, and on each client's own data.",
    ),
    "report": (
        "fedlada.workbench.cli.report:report",
        "Write an HTML report of runs, comparisons or reproductions.",
    ),
    "watch": (
        "fedlada.workbench.cli.report:watch",
        "Serve a live report of a run, or of a folder of runs; Ctrl-C ends it.",
    ),
    "methods": (
        "fedlada.workbench.cli.show:methods",
        "List the methods: their parts, hyperparameters and the vectors they send.",
    ),
    "data": ("fedlada.workbench.cli.data:data", "Download and inspect data sets."),
    "completion": (
        "fedlada.workbench.cli.completion:completion",
        "Print the shell script for tab completion of commands and flags.",
    ),
}
"""Where the commands are, and the first lines of their help."""
UNREADABLE = (PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors of the system about a user's own file."""


@click.group(
    cls=LazyGroup, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, message="fedlada %(version)s")
def fedlada() -> None:
    """Simulate and compare methods of federated optimization, FedLADA among them.

    \b
    A first run, on bundled data:
      fedlada run --method fedlada --rounds 30 --out runs/first
    A comparison with other methods:
      fedlada compare --methods fedavg,fedcm,fedlada --seeds 0,1 --rounds 30 --target 0.9
    """


def main() -> None:
    """Run the command line; every error is one line on standard error, after its traceback if that is wanted."""
    if stand_in.only_asks(sys.argv[1:], os.environ):
        stand_in.install()
    try:
        code = fedlada(standalone_mode=False, prog_name="fedlada")
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        code = 0
    except click.exceptions.Exit as exit:
        code = exit.exit_code
    except click.Abort:
        code = _say("stopped", 130)
    except click.ClickException as error:
        hint = (
            f" ({error.ctx.command_path} --help shows more)"
            if isinstance(error, click.UsageError) and error.ctx
            else ""
        )
        code = _say(error.format_message().rstrip(".") + hint, error.exit_code)
    except (ValueError, ModuleNotFoundError) as error:
        show_traceback(error)
        code = _say(told(error), 2)
    except BrokenPipeError:  # the reader of a pipe is gone
        sys.stderr.close()
        code = 1
    except (RuntimeError, OSError) as error:
        show_traceback(error)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            sys.exit(_say(f"{error.filename} has a name that is too long for the disk: choose a shorter one", 2))
        if isinstance(error, UNREADABLE) and error.filename is not None:
            sys.exit(_say(f"{error.filename} cannot be read or written: {error.strerror}", 2))
        is_full = type(error).__name__ == "OutOfMemoryError"  # torch's, which is not imported for this
        way_out = "a run with --engine sequential needs less; resume a run that had begun with fedlada resume FOLDER"
        code = _say(f"{asked_of_a_full_gpu(error)}: {way_out}" if is_full else told(error), 1)
    except Exception as error:
        if not own_place(error):
            raise  # a fault of this library
        show_traceback(error)
        code = _say(told(error), 1)
    sys.exit(code if isinstance(code, int) else 0)


def _say(text: str, code: int) -> int:
    print(f"fedlada: {text}", file=sys.stderr)
    return code
