"""Mistakes in run folders: checkpoints, metrics, resuming, the best model, what tells two runs apart."""

from __future__ import annotations

from functools import partial

from reference.faults import Check, Faults, in_folder

FOLDER, CHECKPOINTS, CONFIG = "runs/folder.py", "runs/checkpoints.py", "runs/config.py"

FAULTS: Faults = {
    "checkpoint: the first memory stays": (
        CHECKPOINTS,
        "if last is None or last.memory() is not memory:",
        "if last is None:",
    ),
    "checkpoint: every memory is written again": (
        CHECKPOINTS,
        "if last is None or last.memory() is not memory:",
        "if True:",
    ),
    "checkpoint: vectors by their names' order": (
        CHECKPOINTS,
        "names = iter(expected)",
        "names = iter(sorted(expected))",
    ),
    "checkpoint: the oldest are kept": (CHECKPOINTS, "reverse=True", "reverse=False"),
    "checkpoint: memories of other clients": (
        CHECKPOINTS,
        'for client, file in manifest["kept"].items()',
        'for client, file in zip(manifest["kept"], sorted(manifest["kept"].values()))',
    ),
    "resume: memories forgotten": (FOLDER, "state.server, dict(state.kept)", "state.server, {}"),
    "resume: the server's own state forgotten": (
        FOLDER,
        "= state.round, state.server,",
        "= state.round, simulation.engine.method.init(state.server.params),",
    ),
    "resume: round off by one": (FOLDER, "= state.round, state.server,", "= state.round - 1, state.server,"),
    "resume: history goes on behind the checkpoint": (FOLDER, "history_of(rows[:round])", "history_of(rows)"),
    "resume: lines behind the checkpoint stay": (FOLDER, "rows[: simulation.round])", "rows)"),
    "metrics: numbers cut short": (
        "runs/metrics.py",
        "return value if math.isfinite",
        "return round(value, 6) if math.isfinite",
    ),
    "best: the last of equals": ("training/target.py", "else value > other", "else value >= other"),
    "best: forgotten on resuming": (FOLDER, "else simulation.history.best(metric)", "else None"),
    "best: parameters of the checkpoint": (
        FOLDER,
        "params, row, metric = self._new_best",
        "params, row, metric = simulation.server.params, *self._new_best[1:]",
    ),
    "best: every round is": (FOLDER, "self._best = value\n", "pass\n"),
    "model: the first one is exported": (
        FOLDER,
        "simulation.engine.model(simulation.server.params)",
        "simulation.engine.template",
    ),
    "model: an old one stays": (
        FOLDER,
        "(self.path / MODEL).unlink(missing_ok=True)\n",
        "pass\n",
    ),
    "config: clients without their lengths": (
        CONFIG,
        'len(own).to_bytes(8, "little") + own.tobytes()',
        "own.tobytes()",
    ),
    "config: only what was stored is compared": (CONFIG, "sorted(set(stored) | set(config)", "sorted(set(stored)"),
    "config: what lies inside is not compared": (
        CONFIG,
        "if inner := first_difference(there, here):",
        "if inner := first_difference(there, there):",
    ),
    "config: an inner schedule by its first rate": (
        CONFIG,
        "describe_schedule(value) if callable(value)",
        "float(value(1)) if callable(value)",
    ),
    "config: a tensor by its shape": ("runs/parts.py", "{values.dtype}, {digest})", "{values.dtype})"),
}


def checks() -> list[Check]:
    """Runs that go on against runs in one piece, and the folder's files by what they hold."""
    from equivalence import test_held_tensors as held
    from integration import test_run_folder as suite

    found = [partial(in_folder, suite.test_python_runs_resume_too, name) for name in ("scaffold", "fedlada", "fedadam")]
    found += [partial(in_folder, suite.test_checkpoint_round_trip, "fedadam")]
    best = suite.test_the_best_model_is_that_of_the_first_best_round
    found += [partial(in_folder, best, *one) for one in ((0.5, False), (1.0, True))]
    tests = (
        suite.test_rounds_behind_the_checkpoint_are_run_again_and_have_one_line,
        suite.test_only_changed_memories_are_written_again,
        suite.test_checkpoints_by_time,
        suite.test_a_schedule_is_known_by_its_values_not_by_its_place_in_memory,
        suite.test_an_old_final_model_never_passes_for_the_one_in_training,
    )
    found += [partial(in_folder, test) for test in tests]
    found += [
        suite.test_where_two_configurations_differ,
        suite.test_the_same_samples_cut_otherwise_are_other_clients,
        held.test_server_and_nodes_tell_masks_apart,
    ]
    return found
