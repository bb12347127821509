"""`python -m fedlada`, and the `fedlada` command."""

import sys


def main() -> None:
    """The command line, all of which is imported where Ctrl-C is one word."""
    try:
        from fedlada.cli import main as command_line
    except KeyboardInterrupt:
        print("fedlada: stopped", file=sys.stderr)
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
