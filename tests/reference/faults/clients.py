"""Mistakes in what is each client's own: its personal parameters, its test samples, its steps of its own."""

from __future__ import annotations

from functools import partial

from reference.faults import Check, Faults, in_folder

PERSONAL, METHOD, HELD_OUT = "methods/personal.py", "methods/method.py", "federation/client_test.py"
MEASURE, EACH, EXCHANGE = "engines/clients.py", "training/clients.py", "messages/exchange.py"
EVALUATION = "engines/evaluation.py"

FAULTS: Faults = {
    "personal: kept in the engine's order": (PERSONAL, "found[self.places[found].argsort()]", "found"),
    "personal: everybody has the first one's": (
        PERSONAL,
        "own.index_select(-1, self.places.clamp(min=0))",
        "own[..., :1]",
    ),
    "personal: the server's shared vectors": (
        PERSONAL,
        'return self.joined(vector, memory[f"{index}.{name}"]) if self._is_whole(vector) else vector',
        "return vector",
    ),
    "personal: uploaded": (PERSONAL, "return Upload(blank(upload.delta, 0.0), extra)", "return upload"),
    "personal: the server moves them": (METHOD, "else self.personal.unmoved(server, after)", "else after"),
    "personal: vectors from before the round": (
        METHOD,
        "self._merged(local.shared, upload.extra, alone)",
        "local.shared",
    ),
    "personal: a share of the participation": (METHOD, "participation=1.0)", "participation=0.5)"),
    "personal: FedDyn's memory adds up": (PERSONAL, "if name in names else vector", "if False else vector"),
    "messages: all parameters travel": (
        EXCHANGE,
        "return vector if self._is_all_sent(vector) else vector.index_select(-1, self.shared)",
        "return vector",
    ),
    "held out: the same places for all clients": (HELD_OUT, '"client test", 0, client)', '"client test", 0, 0)'),
    "held out: others train on them": (HELD_OUT, "own[~gone[own]]", "np.setdiff1d(own, tests[0])"),
    "held out: a lonely sample": (HELD_OUT, ", len(own) - 1)", ", len(own))"),
    "measure: the neighbour's samples": (MEASURE, "[client, client + 1]", "[client + 1, client + 2]"),
    "measure: outputs of the batch's start": (
        MEASURE,
        "output[start:end], y[start:end]",
        "output[: end - start], y[start:end]",
    ),
    "measure: the best decile": (EACH, "reverse=bool(declared(what)[0])", "reverse=not declared(what)[0]"),
    "measure: metrics of the batch's start": (
        MEASURE,
        "gathered[client].add(output, own)",
        "gathered[0].add(output, own)",
    ),
    "measure: a metric that fails is a zero": (EVALUATION, "found[name] = math.nan", "found[name] = 0.0"),
    "fine-tuning: one step less": (EACH, "num_steps=work.steps or 0", "num_steps=(work.steps or 0) - 1"),
    "fine-tuning: uphill": (EACH, "server.params - engine.outward", "server.params + engine.outward"),
    "fine-tuning: memories forgotten": (EACH, "(server.broadcast, plan, kept)", "(server.broadcast, plan, {})"),
    "resume: client tests behind the checkpoint stay": (
        "runs/client_metrics.py",
        'if values["round"] <= round]',
        "]",
    ),
}


def checks() -> list[Check]:
    """Transcriptions, every engine beside another, and what is done by hand."""
    from data import test_joined as joined
    from engines import test_clients as measure
    from equivalence import test_each_client as each
    from equivalence import test_personal_layers as layers
    from federation import test_client_test as held
    from methods import test_personal as personal
    from training import test_over_clients as summed_up

    found: list[Check] = [partial(personal.test_equals_its_transcription, name, 1) for name in personal.CASES]
    server = personal.test_the_server_never_moves_personal_parameters_and_never_hears_of_them
    found += [partial(server, name) for name in ("fedlada", "fedavg")]
    alone = personal.test_where_all_is_personal_each_client_is_a_federation_of_its_own
    found += [partial(alone, name) for name in ("scaffold", "fedcm")]
    found += [
        personal.test_feddyn_pulls_personal_parameters_to_where_the_round_began,
        personal.test_places_follow_the_parameters_into_another_order,
        held.test_the_seed_and_the_client_decide,
        held.test_a_client_of_one_sample_trains_on_it,
        held.test_a_sample_that_several_hold_is_trained_on_by_none,
        summed_up.test_the_worst_decile,
        measure.test_a_metric_that_fails_on_a_client_is_nan_there,
        joined.test_batches_come_from_their_parts_in_the_order_asked_for,
        layers.test_a_message_holds_the_shared_parameters_alone,
        each.test_held_out_samples_are_tested_and_never_trained_on,
        each.test_fine_tuning_by_hand,
        each.test_fine_tuning_of_scaffold_goes_on_from_its_memory,
    ]
    found += [partial(measure.test_each_client_as_if_alone, name, 8) for name in measure.CASES]
    found += [partial(measure.test_metrics_are_given_the_clients_own_outputs_and_targets, "classes", 8)]
    found += [partial(in_folder, layers.test_resume_to_the_same_bits)]
    return found
