"""The command line: exit codes, one line per failure, start-up imports; as a process where that matters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack_builder.cli.app import COMMANDS, build_app, run
from stack_builder.errors import ExitCode
from stack_builder.progress import amount_text


def stackb(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stack_builder", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_help_lists_every_command_and_the_exit_codes() -> None:
    result = stackb("--help")
    assert result.returncode == 0
    for name, line in COMMANDS.items():
        assert f"  {name}" in result.stdout
        assert line.split(".")[0][:35] in result.stdout
    for code in ExitCode:
        assert f"{code:>4}  {code.meaning.split(':')[0]}" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_table_is_the_commands_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table spares --help the import of every command; it must not drift from what the command says of itself."""
    assert run([name, "--help"]) == 0
    assert COMMANDS[name].rstrip(".") in " ".join(capsys.readouterr().out.split())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from stack_builder.cli.app import run; run(['--help']);"
        "heavy = {'docker', 'httpx', 'pydantic', 'elftools', 'rich', 'matplotlib', 'uv'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("frobnicate",), "no such command 'frobnicate'. See stackb --help."),
        (("patch", "lst"), "no such command 'lst'. Did you mean 'list'? See stackb patch --help."),
        (("schema",), "missing argument"),
        (("schema", "nothing"), "'nothing' is not one of 'report', 'lock', 'receipt'"),
        (("schema", "--nope"), "no such option: --nope"),
        (("schema", "lock", "more"), "See stackb schema --help."),
    ],
)
def test_a_call_that_cannot_be_read_is_one_line(
    call: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(call) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert says in err
    assert err.startswith("stackb: ")
    assert err.count("\n") == 1
    assert out == ""


def test_a_terminal_without_a_width_loses_no_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = {}
    for columns in ("0", "1", "7", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        assert run(["patch", "list"]) == 0
        listed[columns] = capsys.readouterr().out
    assert "symm-mem-sm12" in listed["80"]
    assert set(listed.values()) == {listed["80"]}


def test_ctrl_c_while_modules_load_is_one_line() -> None:
    """The first module that a command loads sends the signal, as a person's hand might."""
    code = (
        "import os, signal, sys\n"
        "class Hand:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Hand())\n"
        "sys.argv = ['stackb', '--help']\n"
        "from stack_builder.__main__ import main\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr, result.stdout) == (130, "stackb: interrupted\n", "")


def test_a_reader_that_leaves_is_no_failure() -> None:
    command = f"{sys.executable} -m stack_builder schema report | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_folder_where_results_belong_is_called_one(tmp_path: Path) -> None:
    result = stackb("policy", str(tmp_path))
    assert (result.returncode, result.stderr) == (
        ExitCode.USAGE,
        f"stackb: {tmp_path}: is a folder. Give the file that stackb bench --output wrote.\n",
    )


def test_unknown_stack_names_those_there_are() -> None:
    result = stackb("fetch", "cu999-none")
    assert result.returncode == ExitCode.USAGE
    assert result.stderr.count("\n") == 1
    assert "cu130-sglang-0.5.23" in result.stderr


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    result = stackb("fetch", "evil\x1b]0;title\x07")
    assert result.returncode == ExitCode.USAGE
    assert "\x1b" not in result.stderr
    assert "\x07" not in result.stderr


def test_version() -> None:
    from importlib.metadata import version

    assert stackb("--version").stdout.strip() == f"stackb {version('stackb')}"


def test_only_the_called_command_is_loaded() -> None:
    app = build_app(["lock", "--help"])
    loaded = [
        c.name for c in app.registered_commands if c.callback is not None and c.callback.__name__ == "_not_loaded"
    ]
    assert sorted(loaded) == sorted(set(COMMANDS) - {"lock"})


def test_a_closed_stdout_is_a_failure() -> None:
    command = f"{sys.executable} -m stack_builder rules ABI001 >&-"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        ExitCode.COULD_NOT_CHECK,
        "stackb: stdout is closed: what is asked for has nowhere to go\n",
    )


def test_an_empty_name_of_a_log_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", ""]) == 2
    assert capsys.readouterr().err == (
        "stackb: the name of the file is empty. Give a log, or - and pipe the text in.\n"
    )


@pytest.mark.parametrize(
    ("amount", "unit", "shown"), [(1, "wheels", "1 wheel"), (0, "wheels", "0 wheels"), (2, "files", "2 files")]
)
def test_one_is_no_plural(amount: int, unit: str, shown: str) -> None:
    assert amount_text(amount, unit) == shown
