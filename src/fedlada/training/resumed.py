"""A check of a resumed run: is the learning rate still the stored one?"""

from __future__ import annotations

import math
import warnings

from fedlada.federation.plan import Rounds, is_pure, rate_of
from fedlada.training.history import Row


class ResumedRate:
    """Warns of a rate that depends on the past, if no observer has restored it.

    It is made when a state was loaded, and asked when all observers have started. A rate that they changed in between
    counts as restored: it may rightly differ from that of the last round.
    """

    def __init__(self, plan: Rounds, last: Row) -> None:
        self.plan, self.last = plan, last
        self.loaded = self._now()

    def check(self) -> None:
        """Warn if the rate of the last round is not the stored one, and has not changed since the state was loaded."""
        now, stored = self._now(), self.last["lr"]
        if now is None or now != self.loaded or math.isclose(now, stored, rel_tol=1e-9):
            return
        warnings.warn(
            f"the learning rate of round {self.last['round']} was {stored:g} and is {now:g} now: it depends on what "
            "was not restored; rebuild that from simulation.history in an observer's on_start",
            stacklevel=2,
        )

    def _now(self) -> float | None:
        if is_pure(self.plan.schedule):
            return None
        try:
            return rate_of(self.plan.schedule, self.last["round"])
        except Exception:  # a user's function may need what it has not restored yet
            return None
