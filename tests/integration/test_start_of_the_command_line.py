"""What happens before torch is there, which takes seconds to import."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

import fedlada
from command_line import ENVIRONMENT
from fedlada.cli import COMMANDS
from fedlada.cli import fedlada as command_line

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


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("completion", "bash"), ()])
def test_simple_questions_do_not_wait_for_torch(words):
    done = without_torch(*words)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_command_does_not_wait_for_torch():
    done = without_torch("rnu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fedlada: there is no command 'rnu'; did you mean 'run'? (fedlada --help shows more)\n"


def test_ctrl_c_while_torch_is_imported_is_one_word():
    done = without_torch("run", "--rounds", "2", error="KeyboardInterrupt")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "fedlada: stopped")


def test_the_list_of_commands_says_what_they_say_of_themselves():
    context = click.Context(command_line)
    for name, (_, line) in COMMANDS.items():
        command = command_line.get_command(context, name)
        assert command.name == name
        assert command.help.splitlines()[0] == line


def test_every_name_of_the_package_is_there_and_known_to_checkers(tmp_path):
    pytest.importorskip("mypy")
    for name in fedlada.__all__:
        assert getattr(fedlada, name).__name__ in (name, f"fedlada.{name}")
    assert fedlada.messages.__name__ == "fedlada.messages"  # a module that is no part of __all__
    assert "import_module" not in dir(fedlada)
    for name in ("fedsgd", "a.b", "__main__"):
        with pytest.raises(AttributeError, match=f"fedlada has no {name!r}"):
            getattr(fedlada, name)
    script = tmp_path / "user.py"
    script.write_text("\n".join(["import fedlada", *(f"fedlada.{name}" for name in [*fedlada.__all__, "fedsgd"])]))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), str(script)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, checked.stdout
    assert 'has no attribute "fedsgd"' in errors[0]


@pytest.mark.parametrize(("words", "number", "answers"), [("fedlada r", 1, ["report", "reproduce", "resume", "run"])])
def test_completion_of_commands_does_not_wait_for_torch(words, number, answers, monkeypatch):
    for name, value in (("_FEDLADA_COMPLETE", "bash_complete"), ("COMP_WORDS", words), ("COMP_CWORD", str(number))):
        monkeypatch.setitem(ENVIRONMENT, name, value)
    done = without_torch()
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == answers
