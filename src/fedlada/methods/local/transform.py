"""The interface of a local transform: update in, update out, with the state it needs."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedlada.methods.state import ClientRound, GradientAt, Round, Step, Vectors


class LocalTransform:
    """One link of the chain that turns a gradient into the step that a client takes.

    Subclasses are frozen dataclasses whose fields are hyperparameters; a field may be a tensor too, such as a mask
    `[P]` in the order of the model's trainable parameters, and engines see to its device, precision and place. Vectors
    are `[P]` or `[C, P]`; whatever a transform does must be elementwise, or reduce over the last axis alone, so that
    every engine can run it. Hooks return new tensors and change none that they are given. Before a run a copy of it is
    checked on a few numbers, alone and stacked, and a transform that breaks this is refused.
    """

    positive: ClassVar[frozenset[str]] = frozenset()
    """Names of its vectors that must stay positive: no message may round them to zero."""
    paired: ClassVar[frozenset[str]] = frozenset()
    """Names of those of its memories that mean something beside a vector of the server optimizer alone, as FedDyn's.

    No server acts on personal parameters, so these memories stay as they were at first there."""
    elementwise: ClassVar[bool] = False
    """Declares that the order of the parameters does not matter: all are treated alike, apart from norms.

    Without the declaration an engine checks this on the whole model, and every operation."""
    ignores_zeros: ClassVar[bool] = False
    """Declares that zeros after the parameters would change nothing, as in a norm; in a mean they do.

    Without the declaration an engine adds zeros only if every operation is elementwise."""
    draws_random_numbers: ClassVar[bool] = False
    """Declares that it draws random numbers: clients then run one after another, each with its own stream."""

    def init_shared(self, params: Tensor) -> Vectors:
        """Vectors `[P]` that the server holds for this transform and broadcasts in each round."""
        return {}

    def init_kept(self, params: Tensor) -> Vectors:
        """Vectors `[P]` that each client keeps to itself between rounds."""
        return {}

    def begin(self, shared: Vectors, kept: Vectors, like: Tensor) -> Vectors:
        """The state of one client's round, each tensor shaped like `like` (or `[..., 1]`), which is x^t."""
        return {}

    def look(self, point: Tensor, local: Vectors, step: Step, gradient_at: GradientAt) -> tuple[Tensor, Vectors]:
        """The point at which this step's gradient is taken, by default unchanged; also returns the new local state.

        Sharpness-aware transforms move the point. The hooks of a chain are called in its order, before any `apply`.
        """
        return point, local

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        """Transform one update; also returns the new local state."""
        return update, local

    def finish(self, local: Vectors, done: ClientRound, step: Step) -> tuple[Vectors, Vectors]:
        """Vectors to upload besides the delta, and the client's new private memory."""
        return {}, step.kept

    def merge(self, shared: Vectors, mean: Vectors, round: Round) -> Vectors:
        """The server's vectors for the next round, from the mean of what the clients uploaded."""
        return shared


HOOKS = ("init_shared", "init_kept", "begin", "look", "apply", "finish", "merge")


def declares(part: LocalTransform, name: str) -> bool:
    """Whether it declares this: a declaration does not hold for hooks that a subclass of its own overrides."""
    kinds = type(part).__mro__

    def place(attribute: str) -> int:
        return next(place for place, kind in enumerate(kinds) if attribute in vars(kind))

    return bool(getattr(part, name)) and place(name) <= min(map(place, HOOKS))
