"""The privacy of a run: its noise, what it spends, and what its rows withhold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fedlada.engines.tally import CohortResult
from fedlada.federation.accounting import accountant, expected_cohort, sampling_of, with_noise
from fedlada.federation.batches import LocalWork
from fedlada.federation.cohorts import Cohorts
from fedlada.federation.gaussian import from_seed, from_system
from fedlada.federation.plan import Plan, Rounds
from fedlada.messages.exchange import Exchange
from fedlada.messages.ledger import ENVELOPE, Ledger
from fedlada.methods.combine import Combiner, Coming, Private
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Server, map_tensors, named_tensors
from fedlada.training.history import Row

WITHHELD: Row = {"train_loss": None, "drift": None, "bytes_by_client": {}}
WITHHELD |= {"clients": [], "lost": [], "refused": [], "idle": []}
"""Columns that would tell of clients what the noise hides."""


def with_solved_noise(method: FederatedMethod, cohorts: Cohorts, num_clients: int, rounds: int) -> FederatedMethod:
    """The same method; where it is private and names an epsilon alone, with the noise that spends it."""
    if not isinstance(method.combiner, Private):
        return method
    return replace(method, combiner=with_noise(method.combiner, cohorts, num_clients, rounds))


class Privacy:
    """The privacy of a simulation whose combiner is `Private`."""

    def __init__(self, private: Private, plan: Rounds, exchange: Exchange, *, is_secret: bool = False) -> None:
        cohorts, num_clients, self.num_steps = _public_facts(plan)
        if any(rule.every > 1 for rule in exchange.rules.values()):
            raise ValueError(
                "vectors that are sent every few rounds need to know who took part, which Private withholds: let each "
                "travel in every round, as with messages='lean:v=log8'"
            )
        assert private.noise_multiplier is not None, "the noise is solved for before the simulation is made"
        self.private, self.seed, self.is_secret = private, plan.seed, is_secret
        self.expected = expected_cohort(cohorts, num_clients)
        self.sampling = sampling_of(private, cohorts, num_clients)
        self.accountant = accountant(self.sampling, private.noise_multiplier, private.delta)
        self.positive = _positive(exchange.method)
        self.repeated = 0
        """Releases of rounds that were run again with other noise, and so count twice."""
        if said := self.exhausted(0):
            raise ValueError(f"not even one round can be run: {said}; take more noise or a larger epsilon")

    def epsilon(self, round: int) -> float:
        """Spent after so many rounds."""
        return self.accountant.epsilon(round + self.repeated)

    def exhausted(self, round: int) -> str:
        """Why no round may follow that one; empty where one may."""
        most = self.private.epsilon
        if most is None or (coming := self.epsilon(round + 1)) <= most:
            return ""
        return f"round {round + 1} would spend epsilon {coming:.4g}, more than the target of {most:g}"

    def coming(self, round: int) -> Coming:
        """What the combiner may know of a round: nothing that depends on who comes."""
        normal = from_system if self.is_secret else from_seed(self.seed, round)
        return Coming(self.expected, normal, self.positive)

    def public(self, result: CohortResult, combiner: Combiner, method: FederatedMethod, server: Server) -> CohortResult:
        """The result with nothing but the noisy sum for the server's step; where nobody came, noise alone."""
        mean = result.mean
        if mean is None and not result.refused:
            local = method.begin(server.broadcast, method.init_kept(server.params), lr=1.0)
            mean = combiner.combine([map_tensors(torch.zeros_like, method.finish(local, 1)[0])])
        return replace(result, mean=mean, weight=self.expected, num_steps=float(self.num_steps))

    def withheld(self, row: Row, ledger: Ledger, earlier: Sequence[Row]) -> Row:
        """A row without what depends on who came and on what they have, and with the epsilon spent so far."""
        found = {**row, **WITHHELD, **self._traffic(row, ledger, earlier), "epsilon": self.epsilon(row["round"])}
        return {**found, "repeated": self.repeated} if self.is_secret else found

    def resume(self, rows: Sequence[Row], round: int) -> None:
        """Go on after that round of a run whose rows these are: those behind it will be released again."""
        if self.is_secret and rows:
            self.repeated = len(rows) + int(rows[-1].get("repeated", 0)) - round

    def _traffic(self, row: Row, ledger: Ledger, earlier: Sequence[Row]) -> Row:
        """The bytes of a round that has as many clients as are expected."""
        sizes: Mapping[str, list[int]] = defaultdict(list)
        for (_, path), size in ledger.entries.items():
            if not path.endswith(ENVELOPE):
                sizes[path].append(size)
        each = {path: round(self.expected * min(own)) for path, own in sizes.items()}
        if not each:  # nobody came, which is not said either
            names = ("bytes_up", "bytes_down", "nd_up", "nd_down", "bytes_by_vector")
            return {name: earlier[-1][name] for name in names if earlier and name in earlier[-1]}
        totals = {
            f"bytes_{way}": sum(size for path, size in each.items() if path.startswith(f"{way}/"))
            for way in ("up", "down")
        }
        return {**totals, "bytes_by_vector": each}


def _public_facts(plan: Rounds) -> tuple[Cohorts, int, int]:
    """How cohorts are drawn, from how many clients, and how many local steps each takes."""
    if getattr(plan, "weights", "uniform") != "uniform":
        raise ValueError("Private counts every client alike: take weights='uniform' with it")
    cohorts, num_clients, work = (getattr(plan, name, None) for name in ("cohorts", "num_clients", "work"))
    if not isinstance(cohorts, Cohorts) or not isinstance(num_clients, int) or not isinstance(work, LocalWork):
        raise ValueError("Private needs a plan with cohorts, num_clients and work")
    known = {work.num_steps(len(own)) for own in plan.clients if len(own)} if isinstance(plan, Plan) else {work.steps}
    steps = known.pop()
    if known or steps is None:
        raise ValueError(
            "the mean number of local steps would tell how much data clients have, which Private must hide: take "
            "local_steps with it"
        )
    return cohorts, num_clients, steps


def _positive(method: FederatedMethod) -> frozenset[str]:
    """The names of the uploaded vectors that hold positive numbers alone."""
    declared = {f"extra.{index}.{name}" for index, part in enumerate(method.local) for name in part.positive}
    return frozenset(declared & {name for name, _ in named_tensors(method.rehearsal.upload)})
