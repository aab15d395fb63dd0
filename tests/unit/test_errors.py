"""Errors: one line with what, where and what to do next."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stack_builder.errors import ExitCode, IntegrityError, MachineError, StackbError, UsageError, from_os_error


def test_line_says_what_where_and_what_next() -> None:
    error = UsageError("no such key", where="stack.toml", fix="remove it")
    assert str(error) == "stack.toml: no such key. Remove it."
    assert str(StackbError("gone")) == "gone"


def test_each_kind_ends_with_its_code() -> None:
    codes = {UsageError: 2, IntegrityError: 1, MachineError: 3}
    assert {kind: kind("x").exit_code for kind in codes} == codes


def test_os_errors_name_the_path_and_a_way_out() -> None:
    full = from_os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/file"))
    assert full.exit_code is ExitCode.COULD_NOT_CHECK
    assert str(full).startswith("/some/file: No space left on device. ")
    assert str(from_os_error(OSError("odd"))) == "odd"


def test_every_code_has_a_meaning() -> None:
    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 130]
    assert all(code.meaning for code in ExitCode)


def test_a_working_folder_that_was_removed_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        Path.cwd()
    failure = from_os_error(caught.value)
    assert str(failure) == "the folder that this was started in is gone. Change into one that is there."
    monkeypatch.chdir(tmp_path)
    assert str(from_os_error(caught.value)) == "No such file or directory"
