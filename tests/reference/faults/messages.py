"""Mistakes in what travels: codes, noise, error feedback, rounds without a vector, the ledger."""

from __future__ import annotations

from functools import partial

from reference.faults import Check, Faults, once

BLOCKS, LOGARITHMIC, MEANS = "messages/blocks.py", "messages/logarithmic.py", "messages/means.py"
TOP_K, NOISE, EXCHANGE = "messages/top_k.py", "messages/noise.py", "messages/exchange.py"
LEDGER, POST = "messages/ledger.py", "engines/post.py"

FAULTS: Faults = {
    "blocks: scale rounded down": (BLOCKS, "scales.view(torch.int32) + 0xFFFF", "scales.view(torch.int32)"),
    "blocks: rounded to the nearest": (BLOCKS, "scaled += uniform_noise(key, size, vector.device)", "scaled += 0.5"),
    "blocks: rounded towards zero": (BLOCKS, "scaled.floor_()", "scaled.trunc_()"),
    "int4: halves of a byte swapped": (BLOCKS, "[codes & 15, codes >> 4]", "[codes >> 4, codes & 15]"),
    "int4: scale of the next block": (
        BLOCKS,
        'encoded.parts["scales"].float()',
        'encoded.parts["scales"].float().roll(1)',
    ),
    "log8: the wrong way between levels": (LOGARITHMIC, "((x - below) /", "((above - x) /"),
    "log8: steps too short": (LOGARITHMIC, "- lowest + LAST - 1) // LAST", "- lowest) // LAST"),
    "log8: rounded down": (LOGARITHMIC, "(codes.flatten()[:size] + up)", "codes.flatten()[:size]"),
    "means: a last block is a whole one": (MEANS, "counts[-1] = size % self.block", "pass"),
    "top-k: the largest without their sign": (TOP_K, "_largest(numbers.abs(), k)", "_largest(numbers, k)"),
    "top-k: values in the order of their size": (
        TOP_K,
        "scatter_(0, target, numbers)[:k]",
        "scatter_(0, target, numbers)[:k].sort(descending=True).values",
    ),
    "top-k: bits from the other end": (
        TOP_K,
        "packed.unsqueeze(1) >> shifts & 1",
        "packed.unsqueeze(1) >> (7 - shifts) & 1",
    ),
    "bfloat16: small numbers become zero": (
        "messages/plain.py",
        "(values == 0) & (vector != 0)",
        "(values == 0) & False",
    ),
    "noise: half of the key": (NOISE, "word.mul_(FIRST).bitwise_xor_(high)", "word.mul_(FIRST)"),
    "noise: key without the client": (EXCHANGE, 'f"messages {path}", when, client)', 'f"messages {path}", when, 0)'),
    "noise: key without the vector": (EXCHANGE, 'f"messages {path}", when', '"messages", when'),
    "noise: key without the seed": (EXCHANGE, "key(self.seed, ", "key(0, "),
    "feedback: wrong sign": (EXCHANGE, "rest = vector - arrived[path]", "rest = arrived[path] - vector"),
    "feedback: the rest of the last round alone": (
        POST,
        "kept.get(client) or exchange.init_kept(wanted.delta)",
        "exchange.init_kept(wanted.delta)",
    ),
    "feedback: what was wanted without the rest": (
        POST,
        "exchange.rest(wanted, received,",
        "exchange.rest(outward(answer.upload), received,",
    ),
    "every: the first round of a period": (EXCHANGE, "or round % self", "or (round - 1) % self"),
    "every: a version too early": (EXCHANGE, "(round - 1) // every * every", "round // every * every"),
    "every: other noise for the same vector": (EXCHANGE, " and rule.every > 1 else round", " and False else round"),
    "every: the server's moves all the same": (
        POST,
        "return replace(after, shared=self._unsent_from(before.shared, after.shared))",
        "return after",
    ),
    "every: sent to who has it": (POST, "self.already_sent.get(client, frozenset())", "frozenset()"),
    "every: who was lost has nothing": (
        "training/simulation.py",
        '("clients", "lost", "refused")',
        '("clients", "refused")',
    ),
    "ledger: envelopes are vectors": (LEDGER, ' and path != f"{direction}/{ENVELOPE}"', ""),
    "ledger: down and up swapped": (LEDGER, 'path.startswith("up/")] += size', 'path.startswith("down/")] += size'),
    "ledger: vectors of all clients": (LEDGER, "(4 * size * len(clients))", "(4 * size)"),
    "ledger: a merge replaces": (LEDGER, "self.entries.update(other.entries)", "self.entries |= other.entries"),
    "wire: checksum not counted": (
        "messages/wire.py",
        "len(header(vectors, about)) + CHECKSUM.size",
        "len(header(vectors, about))",
    ),
}


def checks() -> list[Check]:
    """Codes by their bounds and means, exchanges and ledgers by what must arrive and be counted."""
    import torch

    from equivalence import test_messages_in_engines as engines
    from messages import test_codecs as codecs
    from messages import test_messages as messages

    torch.manual_seed(0)
    numbers, tiny = torch.randn(300), torch.full((5,), -1e-41)
    return [
        partial(once, codecs.test_blocks_are_off_by_less_than_a_level, numbers, 7),
        partial(once, codecs.test_means_are_those_of_their_blocks, numbers.abs(), 7),
        partial(once, codecs.test_logarithms_keep_their_relative_error_and_never_reach_zero, numbers.abs(), 7),
        partial(codecs.test_logarithms_of_close_neighbours_are_exact, 100),
        partial(once, codecs.test_bfloat16, tiny),
        *(partial(once, codecs.test_the_largest_go_and_the_others_are_zero, numbers, share) for share in (0.3, 0.01)),
        *(partial(codecs.test_rounding_is_right_on_average, code) for code in (codecs.INT8, codecs.LOG8)),
        codecs.test_noise_is_even_and_independent_of_place_and_key,
        messages.test_ledger_by_client_direction_and_vector,
        messages.test_what_has_not_changed_is_the_same_message,
        engines.test_what_was_not_sent_is_sent_later,
        engines.test_every_vector_of_every_client_is_rounded_by_noise_of_its_own,
        engines.test_over_a_run_nothing_is_lost,
        engines.test_moments_that_travel_every_third_round,
        engines.test_vectors_that_wait_for_different_rounds_and_clients,
        partial(engines.test_what_is_counted_is_what_would_be_sent, "scaffold", engines.CODED),
    ]
