"""The refusal of a stacked form."""

from __future__ import annotations


class NotStackable(ValueError):
    """Why a model cannot be stacked, or not in this form."""
