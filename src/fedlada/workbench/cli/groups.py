"""Groups of commands. Nothing here needs torch, which takes seconds to import."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from fedlada.workbench.cli import stand_in


class LazyGroup(click.Group):
    """Imports a command's module when it is called, not to list it; suggests the nearest command for an unknown one."""

    def __init__(self, *arguments: Any, places: dict[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.places = places
        """For each command its "module:name" and its line in the list of commands."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Resolve a command; an unknown one is an error that suggests the nearest."""
        name = args[0] if args else ""
        is_asked = args and not name.startswith("-") and not ctx.resilient_parsing  # not for shell completion
        if is_asked and self.get_command(ctx, name) is None:
            from fedlada.methods.validation import nearest  # only mistakes need it

            raise click.UsageError(f"there is no command {name!r}{nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of their names."""
        return sorted(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, with all that it needs."""
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(module), name)
        if stand_in.is_installed() and not isinstance(found, click.Group):
            found.callback = stand_in.refuse_to_run
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin with this text."""
        found = [CompletionItem(name, help=self.places[name][1]) for name in self.list_commands(ctx)]
        return [one for one in found if one.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.places[name][1]) for name in self.list_commands(ctx)])
