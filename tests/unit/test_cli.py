"""The command line as a process: exit codes, one line per failure, start-up imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack_builder.cli.app import COMMANDS, build_app
from stack_builder.errors import ExitCode


def stackb(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stack_builder", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100", **(env or {})},
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
def test_the_line_in_the_table_is_the_commands_own(name: str) -> None:
    """The table spares --help the import of every command; it must not drift from what the command says of itself."""
    own = stackb(name, "--help")
    assert own.returncode == 0, own.stderr
    assert COMMANDS[name].rstrip(".") in " ".join(own.stdout.split())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from stack_builder.cli.app import run; run(['--help']);"
        "heavy = {'docker', 'httpx', 'pydantic', 'elftools', 'rich', 'matplotlib', 'uv'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_unknown_command_is_a_usage_error() -> None:
    result = stackb("frobnicate")
    assert result.returncode == ExitCode.USAGE
    assert "frobnicate" in result.stderr
    assert "Traceback" not in result.stderr


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
