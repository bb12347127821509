"""The server's app: a strategy as a Flower `ServerApp`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlada.flower.strategy import MethodStrategy
from fedlada.methods.method import FederatedMethod
from fedlada.training.observers import Callback
from fedlada.training.resolve import Model


def server_app(
    model: Model,
    method: FederatedMethod | str | Callable[[Context], FederatedMethod | str] = "fedlada",
    *,
    rounds: int = 100,
    out: str | Path | None = None,
    checkpoint_every: int = 10,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **settings: Any,
) -> ServerApp:
    """A `ServerApp` that runs a `MethodStrategy` with these settings."""
    try:
        inspect.signature(MethodStrategy).bind(model, method, **settings)
    except TypeError as error:
        raise TypeError(f"server_app() {error}") from None
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        is_function = callable(method) and not isinstance(method, FederatedMethod)
        chosen = method(context) if is_function else method  # type: ignore[operator]
        strategy = MethodStrategy(model, chosen, **settings)  # type: ignore[arg-type]
        strategy.run(grid, rounds, out=out, checkpoint_every=checkpoint_every, callbacks=callbacks, progress=progress)

    return app
