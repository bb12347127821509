"""Hints of how an optional package is installed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

import fedlada
from fedlada.training.history import History

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text() for path in sorted((ROOT / "src" / "fedlada").rglob("*.py"))}


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("pandas", lambda: History([]).to_pandas(), "pandas"),
        ("sklearn", fedlada.data.load_digits, "digits"),
        ("wandb", lambda: fedlada.trackers.WeightsAndBiases(), "wandb"),
        ("mlflow", lambda: fedlada.trackers.MLflow(), "mlflow"),
    ],
)
def test_a_package_that_is_missing_is_installed_from_a_clone(monkeypatch, package, use, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf": pip install '\.\[{extra}\]' in a clone of fedlada$"):
        use()


def test_every_hint_names_an_extra():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [extra for text in SOURCES.values() for extra in re.findall(r'missing\("[^"]+", "(\w+)"\)', text)]
    assert len(named) >= 7
    assert set(named) <= set(known)


def test_no_error_speaks_of_an_index_that_does_not_have_fedlada():
    errors = [path for path, text in SOURCES.items() if re.search(r"Error\([^)]*pip install", text)]
    assert [path.name for path in errors] == ["extras.py"]
