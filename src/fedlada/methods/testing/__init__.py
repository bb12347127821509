"""Checks for authors of transforms and combiners, and attacks by malicious clients."""

from fedlada.methods.testing import attacks
from fedlada.methods.testing.combiners import check_combiner
from fedlada.methods.testing.transforms import check_transform

__all__ = ["attacks", "check_combiner", "check_transform"]
