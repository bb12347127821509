"""Differential privacy over real nodes."""

from __future__ import annotations

from fedlada.federation.weights import Weights
from fedlada.flower.exchange import Replies
from fedlada.messages.exchange import Exchange
from fedlada.messages.spec import Messages
from fedlada.methods.combine import Mean, NormBound, Private
from fedlada.methods.method import FederatedMethod


def check_private(
    private: Private, method: FederatedMethod, messages: Messages | str, seed: int, eval_clients_every: int | None
) -> None:
    """Refuse settings that reveal more than the noisy sum, or add less noise than claimed."""
    if private.noise_cohort is not None:
        raise ValueError("noise_cohort is for simulations only: a real federation needs its full noise")
    if eval_clients_every is not None:
        raise ValueError("eval_clients_every measures on the nodes' data, which Private must hide: leave it out")
    if method.keeps_memory or Exchange(messages, method, seed).remembered:
        raise ValueError(
            "the server follows each node's memory by who took part, which Private withholds: use a method and "
            "messages without client state"
        )


def check_every_answer_counts(replies: Replies) -> None:
    """Refuse a minimum: where it is reached by one client, that client would decide about all answers of the round."""
    if replies.minimum > 1:
        raise ValueError(f"Private needs minimum=1, got {replies.minimum}: skipped rounds would show who answered")


def check_wrapped(method: FederatedMethod, messages: str, weights: Weights) -> None:
    """Refuse settings that one of Flower's wrappers would not cover."""
    if messages != "float32":
        raise ValueError("Flower's wrappers process uncompressed vectors: use messages='float32' with them")
    if weights != "uniform":
        raise ValueError("Flower's wrappers scale their noise for equal weights: use weights='uniform' with them")
    if method.personal is not None:
        raise ValueError("Flower's wrappers see every parameter: use personal=() with them")
    if isinstance(method.combiner, Private):
        raise ValueError("Private is a combiner of its own: use it or one of Flower's wrappers, not both")
    if not isinstance(method.combiner, (Mean, NormBound)):  # a wrapper clips by itself
        raise ValueError(f"Flower's wrappers take a plain mean: {method.combiner!r} would have no effect with them")
