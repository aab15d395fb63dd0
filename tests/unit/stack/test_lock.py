"""artifacts.json: stable bytes, strict reading, an identity that is the set of hashes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack_builder import resources
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.stack import lock

FOLDERS = sorted(path.parent for path in resources.lockfiles().glob("*/artifacts.json"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_reading_and_writing_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    locked, text = lock.read(folder)
    lock.save(tmp_path, locked, text)
    for name in ("artifacts.json", "requirements.txt"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert lock.load(tmp_path) == locked


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_hold_no_address_and_no_path(folder: Path) -> None:
    for name in ("artifacts.json", "requirements.txt"):
        text = (folder / name).read_text()
        assert "://" not in text.replace("git+https://", "")  # requirement lines of wheels may hold one
        assert "/tmp/" not in text


def test_identity_is_the_set_of_files_and_hashes() -> None:
    locked = lock.load(FOLDERS[0])
    lines = sorted(f"{a.filename} {a.sha256}\n" for a in locked.artifacts)
    assert locked.sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert replace(locked, resolver="other", python="3.99").sha256 == locked.sha256
    assert replace(locked, artifacts=locked.artifacts[1:]).sha256 != locked.sha256


def test_majors_are_of_cuda_not_of_the_soname() -> None:
    needs = (lock.CudaNeed(13, "libcufft.so.12", "a.so"), lock.CudaNeed(13, "libcudart.so.13", "a.so"))
    assert lock.Artifact("a", "1", "a-1-py3-none-any.whl", needs_cuda=needs).cuda_majors == (13,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.update(schema_version=2), "another version of stackb"),
        (lambda b: b.update(surprise=1), "surprise"),
        (lambda b: b["artifacts"][0].update(surprise=1), "artifacts.0.surprise"),
        (lambda b: b["artifacts"][0].pop("filename"), "artifacts.0.filename"),
        (lambda b: b["artifacts"][0].update(size="big"), "artifacts.0.size"),
        (lambda b: b["artifacts"][0].update(sha256="e3b0c442"), "artifacts.0.sha256"),
        (lambda b: b["artifacts"][0].update(filename="../../etc/cron.d/x.whl"), "artifacts.0.filename"),
        (lambda b: b["artifacts"].reverse(), "not sorted"),
        (lambda b: b.pop("stack"), "stack"),
    ],
)
def test_what_is_refused(change: Any, message: str) -> None:
    body = json.loads((FOLDERS[0] / "artifacts.json").read_text())
    change(body)
    with pytest.raises(UsageError, match=message) as error:
        lock.parse(json.dumps(body), Path("artifacts.json"))
    assert len(str(error.value).splitlines()) == 1


@settings(max_examples=50)
@given(st.one_of(st.text(max_size=100), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_any_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError):
        lock.parse(text, Path("artifacts.json"))


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    locked, text = lock.read(FOLDERS[0])
    lock.save(tmp_path, locked, text)
    (tmp_path / "requirements.txt").write_text(text + "# a comment\n")
    with pytest.raises(IntegrityError, match="is not the one that") as error:
        lock.load(tmp_path)
    assert f"Run stackb lock {tmp_path} --check" in str(error.value)  # by its name, another stack would be meant
    assert f"stackb lock {tmp_path} to write both" in str(error.value)
    (tmp_path / "requirements.txt").unlink()
    with pytest.raises(UsageError, match=r"no requirements\.txt"):
        lock.load(tmp_path)
