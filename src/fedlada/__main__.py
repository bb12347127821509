"""`python -m fedlada`, and the `fedlada` command."""

import os
import sys


def main() -> None:
    """The command line, all of which is imported where Ctrl-C is one word."""
    try:
        from fedlada.workbench.cli import main as command_line
    except KeyboardInterrupt:
        print("fedlada: stopped", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    # `python -m` looks for every import in the working directory first, where a stranger's files may lie.
    if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)) and not sys.flags.safe_path:
        del sys.path[0]
    main()
