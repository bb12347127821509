"""Documents and code say the same."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

import fedlada
from fedlada import recipes
from fedlada.methods.recipes import hyper_parameters
from fedlada.methods.state import named_tensors

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


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


LOOKS = {"SharpnessAware", "GlobalSharpnessAware", "UphillGlobally"}
COMMON = {"ClipNorm", "WeightDecay"}


def test_the_table_of_methods_is_that_of_the_recipes():
    rows = re.findall(r"^\| `(\w+)[(`].*?\| (.*) \|$", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    table = {name: [cell.strip().replace("`", "") for cell in cells.split("|")] for name, cells in rows}
    shown = {name: table[name] for name in recipes.RECIPES}
    for name, recipe in recipes.RECIPES.items():
        method = recipe()
        parts = [type(part).__name__ for part in method.local if type(part).__name__ not in COMMON]
        looks = [part for part in parts if part in LOOKS]
        corrections = [part for part in parts if part not in {*LOOKS, "AMSGrad"}]
        server = [type(method.server).__name__, type(method.combiner).__name__]
        kept = len([*named_tensors(method.init_kept(torch.zeros(2)))])
        assert shown[name] == [
            "".join(looks),
            "".join(corrections),
            "AMSGrad" if "AMSGrad" in parts else "SGD",
            server[0] if server[1] == "Mean" else " on ".join(server),
            *map(str, (*method.num_vectors(), kept, method.gradients_per_step)),
        ]


def test_public_names_exist_and_are_documented():
    for name in fedlada.__all__:
        assert getattr(fedlada, name).__doc__, name


def test_the_table_of_arguments_is_that_of_simulate():
    page = (ROOT / "docs" / "start.md").read_text()
    table = page[page.index("**More arguments of `simulate`.**") :]
    cells = re.findall(r"^\| `(\w+=.*?)` \|", table.split("\n\n")[1], re.MULTILINE)
    x = y = torch.zeros(2000)
    given = [eval(f"dict({cell})", {"fedlada": fedlada, "x": x, "y": y}) for cell in cells]
    names = {name for one in given for name in one}
    assert names >= {"local_steps", "cohorts", "unreliable", "weights", "lr", "validation", "patience"}
    assert names <= set(inspect.signature(fedlada.simulate).parameters)


def test_version_stands_in_the_citation():
    assert f"version: {fedlada.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_the_api_page_has_every_public_name():
    shown = re.findall(r"^::: fedlada\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted({*fedlada.__all__, "flower", "messages"})


def test_the_table_of_hooks_has_every_signature():
    text = (ROOT / "docs" / "own-method.md").read_text()
    shown = set(re.findall(r"^\| `(\w+\(self.*?\))` \|", text, re.MULTILINE))
    hooks = {name: hook for name, hook in vars(fedlada.LocalTransform).items() if inspect.isfunction(hook)}
    assert shown == {f"{name}({', '.join(inspect.signature(hook).parameters)})" for name, hook in hooks.items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_dotted_names_in_documents_can_be_imported(page):
    """`fedlada.x.Y` in code spans, and what code blocks import from public places."""
    text = page.read_text()
    names = set(re.findall(r"`(fedlada(?:\.\w+)+)", text))
    assert not re.findall(r"^(?:from|import) fedlada\.workbench.*$", text, re.MULTILINE)
    for name in sorted(names):
        found = fedlada
        for part in name.split(".")[1:]:
            if inspect.ismodule(found) and not hasattr(found, part):
                found = importlib.import_module(f"{found.__name__}.{part}")
            else:
                found = getattr(found, part)


def heading_names(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_the_pages_outside_docs_lead_somewhere(name):
    """`make docs` checks those in docs."""
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / name).read_text()):
        path, _, heading = link.partition("#")
        assert (ROOT / (path or name)).exists(), link
        assert not heading or heading in heading_names(ROOT / (path or name)), link
