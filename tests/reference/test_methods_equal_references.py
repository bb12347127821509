"""Each method equals the literal transcription of its published algorithm, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from driver import run_method
from fedlada import recipes
from method_table import CASES, METHODS
from reference.problem import make_problem


def test_every_recipe_is_in_the_table():
    assert set(METHODS) == set(recipes.RECIPES)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "hyper"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_equals_reference(name, hyper, seed):
    problem = make_problem(seed=seed)
    row = METHODS[name]
    ours = [server.params.numpy() for server in run_method(row.recipe(**hyper), problem)]
    theirs = row.reference(problem, **hyper)
    assert len(ours) == len(theirs) == len(problem.rounds)
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_the_problem_exercises_clipping_and_moves(name):
    """A reference that never clips or never moves would prove nothing."""
    problem = make_problem(seed=0)
    norms = [np.linalg.norm(problem.grad(i, problem.x0, 0, 0)) for i in range(problem.num_clients)]
    assert max(norms) > 2.5
    reference = METHODS[name].reference
    moved = reference(problem, **METHODS[name].hyper)[-1]
    assert np.linalg.norm(moved - problem.x0) > 0.05
    no_clip = reference(problem, **{**METHODS[name].hyper, "clip_norm": None})[-1]
    assert not np.allclose(moved, no_clip)


@pytest.mark.parametrize("name", METHODS)
def test_vectors_up_and_down(name):
    row = METHODS[name]
    assert row.method().num_vectors() == (row.down, row.up)
