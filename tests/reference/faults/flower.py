"""Mistakes in a federation over Flower: what nodes start from, draw, remember and send, and how that is averaged."""

from __future__ import annotations

import logging
from functools import partial

from reference.faults import Check, Faults, in_folder

CLIENT, ENGINE, WIRE = "flower/client.py", "flower/engine.py", "flower/wire.py"
ROUNDS, VERSIONS, MEMORY = "flower/rounds.py", "flower/versions.py", "flower/memory.py"

FAULTS: Faults = {
    "client: starts from its own first model": (CLIENT, "engine.answers(broadcast, plan", "engine.answers(fresh, plan"),
    "client: batches without its number": (
        CLIENT,
        '"client": task.client}',
        '"client": 0}',
    ),
    "client: batches of the first round": (
        CLIENT,
        '"round": task.round, "client"',
        '"round": 1, "client"',
    ),
    "client: always a fresh memory": (CLIENT, "memories.load(start,", "memories.load(None,"),
    "client: sends without its rest": (CLIENT, "wanted = exchange.with_rest(wanted, kept)", "pass"),
    "client: remembers nothing it could not send": (
        CLIENT,
        "exchange.rest(wanted, packed.received, new)",
        "exchange.rest(wanted, wanted, new)",
    ),
    "client: remembers what it had": (CLIENT, "memories.save(made, new,", "memories.save(made, kept,"),
    "coding: noise without the client": (
        "flower/coding.py",
        "encode_finite(state, round, client)",
        "encode_finite(state, round)",
    ),
    "coding: the sender has what it sent": (
        "flower/coding.py",
        "_sizes(encoded), self.exchange.decode(encoded, state))",
        "_sizes(encoded), state)",
    ),
    "wire: an answer in parameters points uphill": (
        WIRE,
        "Broadcast(broadcast.params - upload.delta",
        "Broadcast(broadcast.params + upload.delta",
    ),
    "wire: the mean in parameters read as a delta": (WIRE, "Upload(broadcast.params - params,", "Upload(params,"),
    "versions: the one before": (VERSIONS, "bisect.bisect_right", "bisect.bisect_left"),
    "versions: the first round is passed over": (
        VERSIONS,
        "history.rows[self.seen :]",
        "history.rows[self.seen or 1 :]",
    ),
    "versions: who was refused has a new one": (
        VERSIONS,
        'for client in row["clients"]:',
        'for client in (*row["clients"], *row["refused"]):',
    ),
    "memory: the newest goes, the oldest stays": (
        MEMORY,
        "min((version.round for version in needed), default=0)",
        "max((version.round for version in needed), default=0)",
    ),
    "memory: one for all attempts": (
        MEMORY,
        'attempt = f"-{version.attempt}" if version.attempt else ""',
        'attempt = ""',
    ),
    "engine: replies from the last client on": (
        ENGINE,
        "key=lambda reply: wire.read_header(reply, wire.Done).client",
        "key=lambda reply: -wire.read_header(reply, wire.Done).client",
    ),
    "engine: envelope with its vectors": (ENGINE, "whole - sum(sizes.values())", "whole"),
    "weights: every client the same": (
        ROUNDS,
        "(), float(weights[client]), 0)",
        "(), 1.0, 0)",
    ),
    "weights: participation by number": (
        ROUNDS,
        "else sum(self._believed.values()))",
        "else self.num_clients)",
    ),
    "evaluation: every node the same": (
        "flower/evaluation.py",
        "sum(weights[client] * value for",
        "sum(total / len(said) * value for",
    ),
    "evaluation: samples as they are said": (
        "flower/evaluation.py",
        "weights = bounded(samples, size_bound)",
        "weights = samples",
    ),
    "engine: steps as they are said": (ENGINE, "replace(got, work=believed[client],", "replace(got,"),
    "tally: norms of what was not sent": ("engines/tally.py", "not in self.unsent", "not in ()"),
    "weights: samples as they are said": (
        ROUNDS,
        "return bounded(self.nodes.num_examples, self.size_bound)",
        "return dict(self.nodes.num_examples)",
    ),
    "engine: a round with too few replies counts": (
        ENGINE,
        "if len(good) < self.replies.minimum and not has_nothing_to_do",
        "if len(good) < 1 and not has_nothing_to_do",
    ),
    "engine: old numbers of samples": (ENGINE, "self.nodes.take_number(client, number)", "False"),
    "inbox: a reply counts for the message that it names": (
        "flower/inbox.py",
        "if said == message_id and message_id in self.asked",
        "if message_id in self.asked",
    ),
    "bound: the mean of the middle norms": ("methods/combine/norm_bound.py", "median_low(own)", "median(own)"),
    "bound: zeros count": ("methods/combine/norm_bound.py", "if one > 0]", "if one >= 0]"),
}


def checks() -> list[Check]:
    """Federations in one process against their simulations."""
    from integration import test_flower_equality as equality
    from integration import test_flower_faults as faults
    from integration import test_flower_runs as runs
    from methods import test_combiners as combiners

    found = [runs.test_an_answer_in_parameters_is_where_the_client_ended, runs.test_bytes_are_those_that_were_packed]
    found += [runs.test_evaluation_on_the_nodes, partial(in_folder, runs.test_weights_by_examples, "scaffold")]
    found += [partial(in_folder, runs.test_a_late_task_removes_nothing_that_its_successor_can_name)]
    found += [partial(in_folder, equality.test_every_method_equals_its_simulation, "scaffold")]
    cases = (("fedavg", "int4"), ("scaffold", runs.RESIDUALS))
    found += [partial(in_folder, runs.test_codes_are_those_of_the_simulation, *case) for case in cases]
    said = Log()
    found += [partial(runs.test_no_node_decides_an_evaluation, caplog=said)]
    found += [partial(runs.test_a_node_that_claims_samples_decides_nothing, one) for one in ("uniform", "examples")]
    found += [
        partial(in_folder, partial(faults.test_a_round_with_too_few_answers_is_skipped_and_loses_nothing, caplog=said))
    ]
    found += [partial(faults.test_a_reply_counts_for_the_message_that_it_was_fetched_for, said)]
    found += [
        partial(in_folder, partial(runs.test_new_samples_of_a_node_count_at_once, "fedcm", "examples", caplog=said))
    ]
    found += [partial(equality.test_a_vector_that_is_not_sent_counts_for_no_combiner, "norm-bound", "v=float32+every3")]
    found += [combiners.test_an_even_learned_bound_equals_numpy, combiners.test_zeros_do_not_count_in_the_learned_bound]
    faulty = faults.test_a_faulty_client_is_left_out_of_its_round_alone
    return [*found, partial(in_folder, partial(faulty, "nan", caplog=said))]


class Log(logging.Handler):
    """What is said of a federation, for a test that reads it."""

    text = ""

    def __init__(self) -> None:
        super().__init__()
        log = logging.getLogger("fedlada.flower")
        log.handlers = [one for one in log.handlers if type(one).__name__ != "Log"] + [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Add a sentence."""
        self.text += f"{record.getMessage()}\n"
