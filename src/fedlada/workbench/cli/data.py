"""`fedlada data`: the group alone, so that its help needs no torch."""

from __future__ import annotations

import click

from fedlada.workbench.cli.groups import LazyGroup

COMMANDS = {
    "fetch": ("fedlada.workbench.cli.show:fetch", "Download a data set's official archive, check it and unpack it."),
    "show": ("fedlada.workbench.cli.show:show", "Show a data set and its partition among clients."),
}


@click.group(cls=LazyGroup, places=COMMANDS)
def data() -> None:
    """Download and inspect data sets."""
