"""Checks for authors of transforms, and attacks by malicious clients."""

from fedlada.methods.testing import attacks
from fedlada.methods.testing.transforms import check_transform

__all__ = ["attacks", "check_transform"]
