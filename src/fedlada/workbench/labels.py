"""Labels of a user's own data that leave outputs of the model without a sample."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from fedlada.data.given import Arrays
from fedlada.data.images import Images
from fedlada.data.own import is_own_data
from fedlada.data.source import Source

SHOWN = 5


def say_unused_classes(experiment: Any, source: Source) -> None:
    """One line if the user's classes do not count from 0 on without a gap: a built-in model has an output for each."""
    full = experiment.resolved()
    is_users = full.dataset == "npz" or is_own_data(full.dataset)
    if not is_users or ":" in (full.model or "") or not isinstance(source.train, (tuple, Images, Arrays)):
        return
    parts = [source.labels("train"), *([] if source.test is None else [source.labels("test")])]
    if source.validation is not None:
        parts.append(np.asarray(Source(source.validation, None, 0, ()).labels("train")))
    if any(one.ndim != 1 or one.dtype.kind not in "iu" for one in parts):
        return
    seen = np.unique(np.concatenate(parts))
    missing = np.setdiff1d(np.arange(seen[-1] + 1), seen).tolist()
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        named = f"class{'' if len(missing) == 1 else 'es'} {', '.join(map(str, missing[:SHOWN]))}{more}"
        print(f"fedlada: y has no sample of {named} (of 0 to {seen[-1]}): number the classes from 0", file=sys.stderr)
