"""The options of a private combiner, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from fedlada.federation.accounting import with_noise
from fedlada.federation.cohorts import Bernoulli, FixedSize
from fedlada.methods.combine import Combiner, Private, as_private, is_private
from fedlada.methods.validation import option
from fedlada.workbench.federation import named_clients


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """The noise and the privacy budget of a private run."""

    noise_multiplier: float | None = option(
        None, "Noise multiplier: standard deviation divided by CLIP; or give --target-epsilon."
    )
    target_epsilon: float | None = option(
        None, "Privacy budget: solve for the noise, and stop before the budget is exceeded."
    )
    target_delta: float = option(
        1e-6, "Delta of (epsilon, delta)-differential privacy; take it far below one over the number of clients."
    )
    noise_cohort: int | None = option(None, "Simulations only: noise as for a cohort of this size.")
    noise_population: int | None = option(None, "Number of clients from which the cohort of --noise-cohort is drawn.")


def combiner_of(name: str, options: NoiseOptions) -> Combiner | str | None:
    """The combiner of that name; None is the method's own."""
    if is_private(name):
        return _private(name, options)
    given = (options.noise_multiplier, options.target_epsilon, options.noise_cohort, options.noise_population)
    if any(value is not None for value in given):
        raise ValueError("noise_multiplier, target_epsilon and noise_cohort belong to combiner private:CLIP")
    return None if name == "mean" else name


def solved_noise(
    name: str, options: NoiseOptions, *, num_clients: int | None, cohort_size: int, by_coins: bool, rounds: int
) -> float | None:
    """The noise multiplier of a private run, solved from its target epsilon if not given; None for other runs.

    It is stored with the run, so that further rounds use the same noise.
    """
    if not is_private(name) or options.noise_multiplier is not None or options.target_epsilon is None:
        return options.noise_multiplier
    num_clients = num_clients or named_clients(options)
    if num_clients is None and options.noise_population is None:
        raise ValueError(
            "--target-epsilon needs the number of clients, which is known only when the data are read: give "
            "--noise-multiplier, or divide the samples anew with --partition iid"
        )
    clients = num_clients or cohort_size
    cohorts = Bernoulli(min(1.0, cohort_size / clients)) if by_coins else FixedSize(cohort_size)
    return with_noise(_private(name, options), cohorts, clients, rounds).noise_multiplier


def _private(name: str, options: NoiseOptions) -> Private:
    return as_private(
        name,
        noise_multiplier=options.noise_multiplier,
        epsilon=options.target_epsilon,
        delta=options.target_delta,
        noise_cohort=options.noise_cohort,
        noise_population=options.noise_population,
    )
