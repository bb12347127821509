"""`fedlada completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell script for tab completion of commands and flags.

    \b
    Example:
      fedlada completion bash > ~/.fedlada-completion && . ~/.fedlada-completion
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "fedlada", "_FEDLADA_COMPLETE").source())
