"""Documents and code say the same."""

from __future__ import annotations

from pathlib import Path

import fedlada
from fedlada import recipes
from fedlada.methods.recipes import hyper_parameters

ROOT = Path(__file__).resolve().parents[2]


def test_every_hyper_parameter_is_explained():
    used = {name for method in recipes.RECIPES for name in hyper_parameters(method)}
    assert used == set(recipes.HYPER_PARAMETERS)


def test_methods_page_names_every_recipe_and_every_transform():
    text = (ROOT / "docs" / "methods.md").read_text()
    for name in [
        *recipes.RECIPES,
        *(n for n in fedlada.local.__all__ if n != "LocalTransform"),
        *(n for n in fedlada.server.__all__ if n != "ServerOptimizer"),
    ]:
        assert f"`{name}" in text, name


def test_public_names_exist_and_are_documented():
    for name in fedlada.__all__:
        assert getattr(fedlada, name).__doc__, name


def test_version_stands_in_the_citation():
    assert f"version: {fedlada.__version__}" in (ROOT / "CITATION.cff").read_text()
