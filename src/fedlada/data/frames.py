"""Frames and series of pandas, which is not imported, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_order(x: Any, y: Any) -> None:
    """Refuse frames of the same rows in another order: they are read by position."""
    if len(x) == len(y) and not x.index.equals(y.index) and set(x.index) == set(y.index):
        raise ValueError("x and y have the same index in another order, and are read by position: give y.loc[x.index]")


def numbers_of_frame(name: str, values: Any) -> np.ndarray[Any, Any]:
    """A frame or a series as an array; missing values become NaN, which is refused where rows are counted."""
    kinds: dict[Any, Any] = dict(values.dtypes.items()) if hasattr(values, "columns") else {values.name: values.dtype}
    wrong = [f"{column!r} ({kind})" for column, kind in kinds.items() if getattr(kind, "kind", "O") not in "biuf"]
    if wrong:
        held = "text" if getattr(next(iter(kinds.values())), "kind", "O") == "O" else next(iter(kinds.values()))
        one = f"holds {held}: encode it, as pandas.factorize({name})[0]"
        many = f"has columns that hold no numbers, such as {wrong[0]}: encode them, as pandas.get_dummies does"
        raise ValueError(f"{name} {one if values.ndim == 1 else many}")
    whole = all(kind.kind in "biu" for kind in kinds.values()) and not bool(np.asarray(values.isna()).any())
    return np.asarray(values.to_numpy(dtype=np.int64) if whole else values.to_numpy(dtype=np.float64, na_value=np.nan))
