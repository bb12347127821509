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


def test_every_name_of_the_package_is_there():
    assert set(fedlada.__all__) <= set(dir(fedlada))
    for name in fedlada.__all__:
        assert getattr(fedlada, name).__name__ in (name, f"fedlada.{name}")
    with pytest.raises(AttributeError, match="fedlada has no 'fedsgd'"):
        fedlada.fedsgd  # noqa: B018
