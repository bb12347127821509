"""What happens before torch is there, which takes seconds to import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import fedlada
from command_line import ENVIRONMENT
from fedlada.workbench.cli import fedlada as command_line
from fedlada.workbench.cli.data import data

NO_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, *_):
        if name == "torch":
            raise {error}

sys.meta_path.insert(0, Refuse())
from fedlada.__main__ import main
sys.argv = ["fedlada", *{words}]
main()
"""


def without_torch(*words: str, error: str = "ImportError('torch is imported')") -> subprocess.CompletedProcess:
    """The command line in a process where the import of torch ends so."""
    program = NO_TORCH.format(error=error, words=list(words))
    return subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("completion", "bash"), (), ("data", "--help")])
def test_simple_questions_do_not_wait_for_torch(words):
    done = without_torch(*words)
    assert (done.returncode, done.stderr) == (0, "")


EVERY_HELP = """
import sys
from fedlada.workbench.cli import data, fedlada, stand_in
import click
stand_in.install()
for group in (fedlada, data.data):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if not isinstance(command, click.Group):
            print(command.get_help(click.Context(command, info_name=name, terminal_width=100)))
print("torch" in sys.modules and hasattr(sys.modules["torch"], "__version__"), file=sys.stderr)
"""


def test_the_help_of_every_command_is_the_same_without_torch():
    """Flags are declared beside code that imports torch: a stand-in is imported in its place."""
    without, with_torch = (
        subprocess.run(
            [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
        )
        for code in (EVERY_HELP, EVERY_HELP.replace("stand_in.install()", ""))
    )
    assert (without.returncode, without.stderr) == (0, "False\n")
    assert (with_torch.returncode, with_torch.stderr) == (0, "True\n")
    assert without.stdout == with_torch.stdout


def test_help_and_flags_are_answered_without_torch(monkeypatch):
    done = without_torch("run", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--alpha" in done.stdout
    for name, value in (("COMPLETE", "bash_complete"), ("COMP_WORDS", "fedlada run --alp"), ("COMP_CWORD", "2")):
        monkeypatch.setitem(ENVIRONMENT, name.replace("COMPLETE", "_FEDLADA_COMPLETE"), value)
    assert without_torch().stdout == "plain,--alpha\n"


def test_flags_stand_under_headings_with_defaults_that_depend_on_the_data():
    context = click.Context(command_line.get_command(click.Context(command_line), "run"), terminal_width=200)
    sections = dict(part.split(":\n", 1) for part in context.command.get_help(context).split("\n\n")[4:])
    assert list(sections)[:2] == ["Method and data", "Clients"]
    assert "[default: by the data set, 50 for digits]" in sections["Clients"]
    assert "--alpha" in sections["Hyperparameters of methods"]
    assert re.findall(r"--[a-z-]+", sections["Output"])[:3] == ["--checkpoint-every", "--checkpoint-minutes", "--keep"]


def test_every_option_has_a_sentence_in_sentence_case():
    groups = (command_line, data)
    commands = [group.get_command(click.Context(group), name) for group in groups for name in group.list_commands(None)]
    for command in commands:
        for one in command.get_params(click.Context(command)):
            if isinstance(one, click.Option):
                text = re.sub(r"  \[.*\]$", "", one.help or "")
                assert re.match("[A-Z]", text), (command.name, one.name, text)
                assert text.endswith("."), (command.name, one.name, text)


def test_nothing_runs_where_help_is_the_value_of_a_flag():
    done = without_torch("run", "--rounds", "1", "--out", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--help must not be the value of a flag" in done.stderr


def test_a_wrong_command_does_not_wait_for_torch():
    done = without_torch("rnu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fedlada: there is no command 'rnu'; did you mean 'run'? (fedlada --help shows more)\n"


def test_ctrl_c_while_torch_is_imported_is_one_word():
    done = without_torch("run", "--rounds", "2", error="KeyboardInterrupt")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "fedlada: stopped")


@pytest.mark.parametrize("group", [command_line, data], ids=["fedlada", "data"])
def test_the_list_of_commands_says_what_they_say_of_themselves(group):
    for name, (_, line) in group.places.items():
        command = group.get_command(click.Context(group), name)
        assert command.name == name
        assert command.help.splitlines()[0] == line


def test_every_name_of_the_package_is_there():
    for name in fedlada.__all__:
        assert getattr(fedlada, name).__name__ in (name, f"fedlada.{fedlada._MODULES.get(name)}")
    assert fedlada.messages.__name__ == "fedlada.messages"  # a module that is no part of __all__
    assert "import_module" not in dir(fedlada)
    for name in ("fedsgd", "a.b", "__main__"):
        with pytest.raises(AttributeError, match=f"fedlada has no {name!r}"):
            getattr(fedlada, name)


@pytest.mark.parametrize(("name", "place"), [("Dirichlet", "data"), ("AMSGrad", "local"), ("WarmUp", "schedules")])
def test_a_name_of_another_module_is_pointed_to(name, place):
    with pytest.raises(AttributeError, match=f"fedlada has no '{name}': it is fedlada.{place}.{name}$"):
        getattr(fedlada, name)


def test_checkers_see_the_same_names_and_no_others():
    """They take what is imported for them alone, and a `__getattr__` that they saw would make every name right."""
    tree = ast.parse(Path(fedlada.__file__).read_text())
    (for_checkers,) = (one for one in tree.body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING")
    names = [alias.name for one in for_checkers.body for alias in one.names]
    assert sorted(names) == sorted(fedlada.__all__)
    assert "__getattr__" not in [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]


@pytest.mark.parametrize(("words", "number"), [("fedlada r", 1), ("fedlada rnu r", 2)])
def test_completion_of_commands_does_not_wait_for_torch(words, number, monkeypatch):
    for name, value in (("_FEDLADA_COMPLETE", "bash_complete"), ("COMP_WORDS", words), ("COMP_CWORD", str(number))):
        monkeypatch.setitem(ENVIRONMENT, name, value)
    done = without_torch()
    assert done.stderr == ""
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == ["report", "reproduce", "resume", "run"]
