"""The command line. Exit codes: 0 done, 1 a run failed, 2 wrong usage; an error is one sentence."""

from __future__ import annotations

import sys

import click

from fedlada import __version__
from fedlada.cli.compare import compare
from fedlada.cli.completion import completion
from fedlada.cli.evaluate import evaluate
from fedlada.cli.flags import NearestGroup
from fedlada.cli.pack import pack
from fedlada.cli.report import report, watch
from fedlada.cli.reproduce import reproduce
from fedlada.cli.run import resume, run
from fedlada.cli.show import data, methods
from fedlada.cli.sweep import sweep_command


@click.group(cls=NearestGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, message="fedlada %(version)s")
def fedlada() -> None:
    """FedLADA and the federated methods it is compared with.

    \b
    A first run, on data that ships with it:
      fedlada run --method fedlada --rounds 30 --out runs/first
    and the same beside other methods:
      fedlada compare --methods fedavg,fedcm,fedlada --seeds 0,1 --rounds 30 --target 0.9
    """


for command in (
    run,
    resume,
    compare,
    sweep_command,
    reproduce,
    pack,
    evaluate,
    report,
    watch,
    methods,
    data,
    completion,
):
    fedlada.add_command(command)


def main() -> None:
    """Run the command line; every error is one sentence on standard error."""
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
        code = _say(str(error), 2)
    except BrokenPipeError:  # the reader of a pipe has gone: nothing more to say
        sys.stderr.close()
        code = 1
    except (RuntimeError, OSError) as error:
        code = _say(str(error), 1)
    sys.exit(code if isinstance(code, int) else 0)


def _say(text: str, code: int) -> int:
    print(f"fedlada: {text}", file=sys.stderr)
    return code
