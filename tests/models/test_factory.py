"""The user's own model, imported from the working directory."""

from __future__ import annotations

import sys

import pytest

from fedlada.models.factory import model_factory

NET = """
import torch

def net():
    from sizes_of_mine import WIDTH

    return torch.nn.Linear(WIDTH, 2)
"""


@pytest.fixture
def beside_the_user(tmp_path, monkeypatch):
    (tmp_path / "net_of_mine.py").write_text(NET)
    (tmp_path / "broken_of_mine.py").write_text("raise OSError('no')")
    (tmp_path / "sizes_of_mine.py").write_text("WIDTH = 3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != ""])


@pytest.mark.usefixtures("beside_the_user")
def test_the_working_directory_is_on_the_path_for_the_model_alone():
    before = list(sys.path)
    factory = model_factory("net_of_mine:net")
    assert sys.path == before
    assert factory().in_features == 3  # imports when it is called
    assert sys.path == before
    with pytest.raises(ValueError, match="OSError: no"):
        model_factory("broken_of_mine:net")
    assert sys.path == before


@pytest.mark.usefixtures("beside_the_user")
def test_a_working_directory_that_was_on_the_path_stays_there():
    sys.path.insert(1, "")
    before = list(sys.path)
    assert model_factory("net_of_mine:net")().out_features == 2
    assert sys.path == before
