"""The paper's theorem in practice, on a problem where everything it assumes is known."""

from fedlada.paper.theory.scales import study

__all__ = ["study"]
