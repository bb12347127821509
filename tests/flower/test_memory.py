"""Which files of client states are taken for a client's own."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fedlada import recipes
from fedlada.flower import wire
from fedlada.flower.memory import LostMemory, Memories
from fedlada.flower.versions import Version
from fedlada.methods.state import Kept
from small_federation import QUICK, grid_of, strategy_of


@pytest.mark.parametrize("source", ["another client", "another round", "another run"])
def test_a_memory_of_another_place_is_lost(source, tmp_path, caplog):
    """Whole files, of the right shapes, under the name of the wanted one."""

    def state(run, client, version):
        memories = Memories(tmp_path, run, client)
        kept = Kept(({"control": torch.full((2,), float(version.round))},))
        memories.save(version, kept, needed=memories.versions())
        return memories, memories.folder / f"round-{version.round:06d}-{version.attempt}.safetensors"

    attempt = "0" * 16
    wanted, place = state("run", 1, Version(2, attempt))
    other = {
        "another client": ("run", 2, Version(2, attempt)),
        "another round": ("run", 1, Version(1, attempt)),
        "another run": ("other", 1, Version(2, attempt)),
    }[source]
    _, file = state(*other)
    shutil.copy(file, place)
    with pytest.raises(LostMemory, match="it has lost its memory of round 2"):
        wanted.vectors(Version(2, attempt))
    assert "was that of another run, client or round" in caplog.text


def test_memories_of_older_versions_are_read(tmp_path):
    """They do not say where they belong."""
    memories, version = Memories(tmp_path, "run", 1), Version(2, "")
    memories.save(version, Kept(({"control": torch.ones(2)},)), needed=[])
    (path,) = memories.folder.glob("round-*")
    with safe_open(path, framework="pt") as file:
        digest = file.metadata()["sha256"]
    save_file(memories.vectors(version), path, {"sha256": digest})
    assert len(memories.vectors(version)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 3])
def test_a_node_that_is_always_late_does_not_fill_its_disk(first, tmp_path):
    """No server can name what it has not accepted."""
    method = recipes.scaffold()

    def fault(who, asked, reply):
        late = asked.metadata.message_type == "train" and who == 1
        return [] if late and asked.content[wire.HEADER]["round"] >= first else [reply]

    strategy = strategy_of(method, replies=QUICK, cohort_size=None)
    grid = grid_of(method, tmp_path / "memory", fault)
    strategy.run(grid, 8, out=tmp_path / "run", checkpoint_every=1, progress=False)
    (own,) = (tmp_path / "memory").glob("*/client-000001")
    assert len(list(own.glob("round-*"))) <= 4
