"""The privacy of a run: its noise, the epsilon it spends, and the columns it withholds."""

from __future__ import annotations

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
from fedlada.methods.combine import Combiner, Coming, Private
from fedlada.methods.method import FederatedMethod
from fedlada.methods.state import Server, Upload, map_tensors, named_tensors
from fedlada.methods.testing.attacks import Attack
from fedlada.training.history import Row

WITHHELD: Row = {"train_loss": None, "drift": None, "bytes_by_client": {}}
WITHHELD |= {"clients": [], "lost": [], "refused": [], "idle": []}
"""Columns that would reveal what the noise hides."""


def with_solved_noise(method: FederatedMethod, cohorts: Cohorts, num_clients: int, rounds: int) -> FederatedMethod:
    """The same method; if it is private with only an epsilon, with the noise that spends it."""
    if not isinstance(method.combiner, Private):
        return method
    return replace(method, combiner=with_noise(method.combiner, cohorts, num_clients, rounds))


def refuse_measures(measures: Mapping[str, object], *, is_personal: bool) -> None:
    """Refuse what measures on clients' own data and publishes the result."""
    for name in [name for name, value in measures.items() if value is not None]:
        also = " (and personal, which needs it)" if is_personal and name == "client_test" else ""
        raise ValueError(f"{name}{also} measures on clients' data, which Private must hide: leave it out")


class Privacy:
    """The privacy of a simulation whose combiner is `Private`."""

    def __init__(
        self,
        private: Private,
        plan: Rounds,
        exchange: Exchange,
        *,
        is_secret: bool = False,
        attack: Attack | None = None,
    ) -> None:
        if attack is not None and attack.colludes:
            raise ValueError(
                f"attackers of {type(attack).__name__} send what follows from the honest uploads, so that one client "
                "moves the sum by more than its own: take an attack whose clients act alone with Private"
            )
        cohorts, num_clients, self.num_steps = _public_facts(plan)
        if any(rule.every > 1 for rule in exchange.rules.values()):
            raise ValueError(
                "vectors that are sent every few rounds need to know who took part, which Private withholds: send "
                "every vector in every round, as with messages='lean:v=log8'"
            )
        assert private.noise_multiplier is not None, "the noise is solved for before the simulation is made"
        self.private, self.seed, self.is_secret = private, plan.seed, is_secret
        self.expected = expected_cohort(cohorts, num_clients)
        self.total_weight = float(num_clients)  # who has no samples is not public
        self.sampling = sampling_of(private, cohorts, num_clients)
        self.accountant = accountant(self.sampling, private.noise_multiplier, private.delta)
        self.exchange, self.method = exchange, exchange.method
        self.positive = _positive(self.method)
        self.bytes: dict[str, int] = {}
        """Bytes of one client's messages, by vector."""
        names = {name for path, _ in named_tensors(self.method.dry_run.upload) for name in (path, _short(path))}
        if unknown := sorted(set(private.scales) - names):
            raise ValueError(f"Private has a scale for {unknown[0]!r}, which {self.method.name} does not send")
        self.repeated = 0
        """Number of rounds released again with other noise, which therefore count twice."""
        if said := self.exhausted(0):
            raise ValueError(f"not even one round can be run: {said}; use more noise or a larger epsilon")

    def epsilon(self, round: int) -> float:
        """Epsilon spent after this many rounds."""
        return self.accountant.epsilon(round + self.repeated)

    def exhausted(self, round: int) -> str:
        """The reason why no further round is allowed; empty if one is."""
        most = self.private.epsilon
        if most is None or (coming := self.epsilon(round + 1)) <= most:
            return ""
        return f"round {round + 1} would spend epsilon {coming:.4g}, more than the target of {most:g}"

    def coming(self, round: int) -> Coming:
        """The facts of a round for the combiner: none depends on which clients take part."""
        normal = from_system if self.is_secret else from_seed(self.seed, round)
        return Coming(self.expected, normal, self.positive)

    def public(self, result: CohortResult, combiner: Combiner, method: FederatedMethod, server: Server) -> CohortResult:
        """The result, reduced to the noisy sum for the server's step.

        An empty round releases noise alone: skipping it would reveal who took part.
        """
        mean = result.mean
        if mean is None:
            mean = combiner.combine([map_tensors(torch.zeros_like, _upload(method, server))])
        return replace(result, mean=mean, weight=self.expected, num_steps=float(self.num_steps))

    def withheld(self, row: Row, server: Server) -> Row:
        """A row without columns that depend on the clients, and with the epsilon spent so far."""
        found = {**row, **WITHHELD, **self._traffic(server), "epsilon": self.epsilon(row["round"])}
        return {**found, "repeated": self.repeated} if self.is_secret else found

    def resume(self, rows: Sequence[Row], round: int, repeated: int) -> None:
        """Resume after that round of a run with these rows: later rounds will be released again.

        `repeated` is the number of repeated releases before this resume.
        """
        if self.is_secret:
            last = int(rows[-1].get("repeated", 0)) if rows else 0
            self.repeated = max(repeated, max(len(rows), round) + last - round)

    def _traffic(self, server: Server) -> Row:
        """The bytes of a round with the expected number of clients, from the shapes of its messages alone."""
        if not self.bytes:
            down, up = server.broadcast, _upload(self.method, server)
            encoded = self.exchange.encode(map_tensors(torch.ones_like, down), round=1)
            encoded |= self.exchange.encode(map_tensors(torch.ones_like, up), round=1)
            self.bytes = {path: one.num_bytes for path, one in encoded.items()}
        row: Row = {"bytes_by_vector": {path: round(self.expected * size) for path, size in self.bytes.items()}}
        for way in ("up", "down"):
            total = sum(size for path, size in self.bytes.items() if path.startswith(f"{way}/"))
            row |= {f"bytes_{way}": round(self.expected * total), f"nd_{way}": total / (4 * server.params.numel())}
        return row


def _upload(method: FederatedMethod, server: Server) -> Upload:
    """An upload of zeros in the right shapes."""
    return method.finish(method.begin(server.broadcast, method.init_kept(server.params), lr=1.0), 1)[0]


def _public_facts(plan: Rounds) -> tuple[Cohorts, int, int]:
    """The client sampling, the number of clients and their local steps."""
    if getattr(plan, "weights", "uniform") != "uniform":
        raise ValueError("Private weights every client equally: use weights='uniform'")
    cohorts, num_clients, work = (getattr(plan, name, None) for name in ("cohorts", "num_clients", "work"))
    if not isinstance(cohorts, Cohorts) or not isinstance(num_clients, int) or not isinstance(work, LocalWork):
        raise ValueError("Private needs a plan with cohorts, num_clients and work")
    known = {work.num_steps(len(own)) for own in plan.clients if len(own)} if isinstance(plan, Plan) else {work.steps}
    steps = known.pop()
    if known or steps is None:
        raise ValueError(
            "the mean number of local steps would reveal how much data clients have, which Private must hide: use "
            "local_steps"
        )
    return cohorts, num_clients, steps


def _positive(method: FederatedMethod) -> frozenset[str]:
    """Names of the uploaded vectors that must stay positive."""
    declared = {f"extra.{index}.{name}" for index, part in enumerate(method.local) for name in part.positive}
    return frozenset(declared & {name for name, _ in named_tensors(method.dry_run.upload)})


def _short(path: str) -> str:
    return path.rpartition(".")[2]
