"""`python -m fedlada`, and the `fedlada` command."""

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C during imports also ends it without a traceback."""
    try:
        from fedlada.workbench.cli import main as command_line
        from fedlada.workbench.words import show_warnings_as_lines
    except KeyboardInterrupt:
        print("fedlada: stopped", file=sys.stderr)
        sys.exit(130)
    show_warnings_as_lines()
    command_line()


if __name__ == "__main__":
    # `python -m` searches the working directory first, which may hold untrusted files.
    if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)) and not sys.flags.safe_path:
        del sys.path[0]
    main()
