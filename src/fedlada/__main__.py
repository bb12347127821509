"""`python -m fedlada`, and the `fedlada` command."""

from fedlada.cli import main

if __name__ == "__main__":
    main()
