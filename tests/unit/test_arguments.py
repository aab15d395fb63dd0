"""Arguments that several commands share."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stack_builder.cli.arguments import read_key, split_server_arguments
from stack_builder.errors import UsageError


@pytest.fixture(autouse=True)
def no_key_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STACKB_API_KEY", raising=False)


def test_the_key_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(" sk-1 \nnotes: renew it in May\n")
    assert read_key(tmp_path / "key") == "sk-1"


def test_a_key_may_come_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    writer = threading.Thread(target=(tmp_path / "key").write_text, args=("sk-2\n",))
    writer.start()
    assert read_key(tmp_path / "key") == "sk-2"
    writer.join()


def test_without_a_file_it_is_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_key(None) is None
    monkeypatch.setenv("STACKB_API_KEY", "sk-3")
    assert read_key(None) == "sk-3"


@pytest.mark.parametrize("content", [b"", b"\nsk-1\n", "clé\n".encode(), b"\xff\xfe\n", b"sk\x1b[1m\n"])
def test_what_no_header_can_carry_is_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(UsageError, match="holds no key"):
        read_key(tmp_path / "key")


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_file_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_key(tmp_path / name)


def test_a_variable_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKB_API_KEY", "clé")
    with pytest.raises(UsageError, match="STACKB_API_KEY: holds no key"):
        read_key(None)


def test_sglangs_arguments_are_told_from_a_stack() -> None:
    assert split_server_arguments("--tp", ["2"]) == (None, ["--tp", "2"])
    assert split_server_arguments("cu130", ["--tp", "2"]) == ("cu130", ["--tp", "2"])
    assert split_server_arguments(None, None) == (None, [])
