"""Mistakes in the round loop and in what all engines share: the tally, the post, the shares of processes."""

from __future__ import annotations

from functools import partial

from reference.faults import Check, Faults, once

TALLY, POST, DISTRIBUTED = "engines/tally.py", "engines/post.py", "engines/distributed.py"
FORGERY = "engines/forgery.py"

FAULTS: Faults = {
    "engine: steps not weighted": (
        TALLY,
        "self.steps / total",
        "self.steps / sum(w * w for w in self.weights)",
    ),
    "engine: K of the first client": (
        "engines/sequential.py",
        "self.method.finish(local, work.num_steps)",
        "self.method.finish(local, 1)",
    ),
    "engine: gradients accumulate": ("models/flat.py", "parameter.grad = None", "pass"),
    "engine: parameters not loaded": (
        "engines/sequential.py",
        "self.flat.load(point)",
        "pass",
    ),
    "engine: memory not kept": ("training/simulation.py", "self.kept.update(result.kept)", "pass"),
    "engine: uploads all weigh the same": (
        TALLY,
        "self.weights.append(weight)",
        "self.weights.append(1.0)",
    ),
    "simulation: participation by number": (
        "training/simulation.py",
        "result.weight / (self.privacy or self.plan).total_weight",
        "len(result.accepted) / self.plan.num_clients",
    ),
    "simulation: rate of the first round": ("training/simulation.py", "lr=plan.lr,", "lr=self.plan.round(1).lr,"),
    "evaluation: ignored places count": (
        "engines/evaluation.py",
        "self.counted += counted",
        "self.counted += y.numel()",
    ),
    "evaluation: a mean of batches": ("engines/evaluation.py", "value * weight, 0.0", "value * len(y), 0.0"),
    "inputs: by place where they have names": ("models/call.py", "((), dict(x)) if", "(tuple(x.values()), {}) if"),
    "tally: losses not weighted": (TALLY, "self.loss += weight * ", "self.loss += "),
    "tally: squares not weighted": (TALLY, "self.square += weight * ", "self.square += "),
    "tally: weights grow for every combiner": (
        TALLY,
        'if not combiner.declares("streams"):',
        "if False:",
    ),
    "post: who was lost was not asked": (
        POST,
        "(*(work.client for work in self.plan.assignments), *self.plan.lost)",
        "[work.client for work in self.plan.assignments]",
    ),
    "post: what was trained is not weighted": (POST, "own = answer.work.weight * trained", "own = trained"),
    "post: drift of what attackers say": (
        POST,
        "wanted.delta if answer.trained is None else answer.trained",
        "wanted.delta",
    ),
    "post: drift of those who are refused": (POST, "if not not_positive(received", "if True or not_positive(received"),
    "forgery: everybody lies": (FORGERY, "return answer.work.client in self.attackers", "return True"),
    "forgery: one stream of noise for all": (FORGERY, '"attack", round, answer.work.client', '"attack", round, 0'),
    "forgery: attackers count as honest": (
        FORGERY,
        "[answer for answer in sent if not self._attacks(answer)] or liars",
        "sent",
    ),
    "attackers: the same for every seed": (
        "federation/attackers.py",
        'bits(seed, "attackers")',
        'bits(0, "attackers")',
    ),
    "alie: on the other side of the mean": (
        "methods/testing/attacks.py",
        "honest.mean(dim=0) - z *",
        "honest.mean(dim=0) + z *",
    ),
    "shares: by clients instead of steps": (
        DISTRIBUTED,
        "total = sum(one.num_steps for one in work)",
        "total = len(work)",
    ),
    "shares: the order is turned round": (DISTRIBUTED, "parts[min(num_ranks - 1, ", "parts[-1 - min(num_ranks - 1, "),
    "distributed: means added instead of sums": (DISTRIBUTED, "lambda v: v * own_weight, mean", "torch.clone, mean"),
    "distributed: divided by the number of clients": (
        DISTRIBUTED,
        "lambda vector: vector / weight, total",
        "lambda vector: vector / len(merged.weights), total",
    ),
    "distributed: its own bytes counted twice": (
        DISTRIBUTED,
        "if rank != self.rank:\n                post",
        "if True:\n                post",
    ),
    "distributed: squares of the last process alone": (
        DISTRIBUTED,
        "merged.square += one.square",
        "merged.square = own.loss",
    ),
    "distributed: a fresh memory is sent": (
        DISTRIBUTED,
        "kept = own.kept[client] if rank == self.rank else fresh",
        "kept = fresh",
    ),
}


def checks() -> list[Check]:
    """Runs against NumPy, what is told of a round, and one process that merges alone."""
    from equivalence import test_engine_equals_reference as reference
    from equivalence import test_messages_in_engines as messages
    from equivalence import test_open_contract as contract
    from equivalence import test_sequences as sequences
    from equivalence import test_several_inputs as inputs
    from integration import test_torchrun as processes
    from methods import test_attacks as attacks
    from own_combiners import TotalFirst

    found = [partial(reference.test_simulation_equals_reference, name) for name in ("scaffold", "fedlada")]
    weighted = reference.test_weights_equal_a_weighted_reference
    found += [partial(weighted, *one, "examples") for one in reference.WEIGHTED]
    found.append(partial(sequences.test_means_are_over_all_places_that_count, True))
    found.append(inputs.test_how_a_model_takes_its_inputs)
    found.append(messages.test_float32_messages_are_the_numbers_themselves)
    found.append(partial(messages.test_drift_is_where_the_clients_really_ended, "delta=top0.1", "examples"))
    lies = attacks.test_attackers_send_the_transcription_and_others_what_they_trained
    found += [partial(lies, name, "sequential") for name in ("gaussian", "alie")]
    found += [attacks.test_drift_is_that_of_the_training, attacks.test_the_attackers_are_the_seeds]
    found.append(partial(once, processes.test_shares_keep_the_order_and_are_even, [3, 1, 4, 1, 5, 9, 2, 6], 3))
    found += [partial(alone, processes.test_one_process_merges_what_it_alone_has, text) for text in MESSAGES]
    all_weights = contract.test_a_combiner_begins_with_all_weights_in_every_engine
    found.append(partial(all_weights, TotalFirst(), "sequential", "float32"))
    return found


MESSAGES = ("float32", "control=int8:delta=top0.3")


def alone(test, messages: str) -> None:
    """Call a test that sets a variable of its process."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        test(False, messages, patch)
