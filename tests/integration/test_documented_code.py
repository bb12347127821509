"""Every code block of README and documentation runs.

A block that needs a GPU, a download, other machines or minutes has a line above it that says when somebody last ran it:
`<!-- by hand, 2026-11-15: needs CIFAR-10 -->`. Its commands are then only read.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from command_line import run_shortened
from fedlada.workbench.cli import fedlada as command_line

ROOT = Path(__file__).resolve().parents[2]
MEASUREMENTS = {ROOT / "docs" / "results.md"}
"""Pages of dated measurements, as all of docs/results: their commands take hours on a GPU."""
BLOCK = re.compile(
    r"^(?:<!-- by hand, (?P<date>\d{4}-\d\d-\d\d): .+ -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```", re.S | re.M
)
BEFORE = {
    "report.md": (
        "fedlada compare --methods fedavg,fedlada --seeds 0,1 --out runs/compared",
        "fedlada run --out runs/first",
        "fedlada run --out runs/mine",
        "fedlada run --out runs/theirs",
    )
}
"""Commands that a page takes for given."""


@dataclass(frozen=True)
class Block:
    """A block of code, and the date of its last run if it is not run here."""

    language: str
    code: str
    date: str | None

    @property
    def commands(self) -> list[str]:
        """Lines of a shell, with those that go on joined; no comments."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [line for line in lines if shlex.split(line, comments=True)]


def blocks(page: Path, *languages: str) -> list[Block]:
    found = [Block(one["language"], one["code"], one["date"]) for one in BLOCK.finditer(page.read_text())]
    return [block for block in found if block.language in languages]


PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
    if page not in MEASUREMENTS
]
SHELL = ("", "sh")


def having(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "page", [page for page in PAGES if blocks(page, *languages)], ids=lambda page: page.stem
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shortened(code: str) -> str:
    """The same code with fewer rounds and smaller studies."""
    for name, number in (("rounds", 2), ("local_epochs", 1)):
        code = re.sub(rf'\b({name}(?:=|": ))\d+', rf"\g<1>{number}", code)
    return code.replace('"quick", seeds=range(8)', '"smoke", seeds=range(2)')


@pytest.mark.slow
@having("python")
def test_python_runs_as_pasted(page, folder):
    run_shortened(BEFORE.get(page.name, ()), folder)
    for block in blocks(page, "python"):
        if block.date is None:
            exec(compile(shortened(block.code), str(page), "exec", dont_inherit=True), {"__name__": "__main__"})


@pytest.mark.slow
def test_the_first_snippet_prints_what_stands_below_it(capsys):
    first, *_ = blocks(ROOT / "README.md", "python")
    header, *shown = blocks(ROOT / "README.md", "text")[0].code.splitlines()
    names = [row.split()[0] for row in shown]
    assert str(tuple(names)).replace("'", '"') in first.code
    exec(first.code.replace(str(tuple(names)).replace("'", '"'), '("fedlada",)'), {})
    found_header, found = capsys.readouterr().out.splitlines()
    assert found_header == header
    assert {len(row) for row in shown} == {len(header)} == {len(found)}
    ours, theirs = (
        [float(cell.strip("%")) for cell in row.split()[1:]] for row in (found, shown[names.index("fedlada")])
    )
    # Rounds, megabytes and percent differ a little on other processors.
    assert ours == pytest.approx(theirs, abs=2)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_first_snippet_of_a_new_user_can_be_run_twice():
    """A script that is started again, in the same folder, makes the same data and weights."""
    first, *_ = blocks(ROOT / "docs" / "start.md", "python")
    rounds = []
    for _ in range(2):
        names: dict[str, object] = {}
        torch.seed()  # as in a new process
        exec(shortened(first.code), names)
        rounds.append(names["result"].history.rows)
    assert rounds[0] == rounds[1]


@pytest.fixture
def modules(folder, monkeypatch):
    """Write the blocks that begin with the name of their file, where commands find them."""
    monkeypatch.syspath_prepend(folder)

    def write(page: Path) -> None:
        for block in blocks(page, "python"):
            if named := re.match(r"# (\w+\.py)\n", block.code):
                (folder / named[1]).write_text(block.code)

    yield write
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.slow
@having(*SHELL)
def test_commands_run(page, folder, modules):
    modules(page)
    lines = [line for block in blocks(page, *SHELL) if block.date is None for line in block.commands]
    ours = [line for line in lines if line.startswith("fedlada ")]
    assert [line for line in lines if line not in ours and not is_of_the_setup(line)] == []
    run_shortened([*BEFORE.get(page.name, ()), *ours], folder)


def is_of_the_setup(line: str) -> bool:
    """What every clone and every run of CI begins with; here only the names are checked."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        return all(re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.M) for word in words[1:])
    return line in ("python -m venv .venv && . .venv/bin/activate", "pip install --constraint constraints.txt '.[all]'")


@having(*SHELL)
def test_commands_can_be_read(page, modules):
    modules(page)
    for block in blocks(page, *SHELL):
        for line in block.commands:
            words = shlex.split(line, comments=True)
            if words[0] == "torchrun":
                words = words[words.index("-m") + 1 :]
            if words[0] == "fedlada":
                read(words[1:])
            if words[0] == "python" and words[1].endswith(".py"):
                assert (ROOT / words[1]).exists() or (ROOT / "examples" / "flower-app" / words[1]).exists(), line


def read(words: list[str]) -> None:
    """Parse a command without running it: a wrong name or flag is an error."""
    command, context = command_line, None
    while hasattr(command, "commands"):
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, name
    command.make_context(name, words, resilient_parsing=False)
