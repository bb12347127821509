"""The one table of methods over which every law is tested: a new method's row stands above its transcription."""

from reference import algorithms  # noqa: F401  (fills the table)
from reference.rows import METHODS

CASES = [(name, {**row.hyper, **changes}) for name, row in METHODS.items() for changes in ({}, *row.variants)]
"""Every method with each set of hyperparameters that its reference knows."""
