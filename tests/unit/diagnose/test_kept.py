"""Facts of wheels and images are read once, and again when anything that they depend on is another one."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from stack_builder import resources
from stack_builder.diagnose import doctor
from stack_builder.diagnose.environment import kept
from stack_builder.diagnose.environment.collect import Scene
from stack_builder.diagnose.environment.facts import Environment
from stack_builder.diagnose.target import TargetSpec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STACKB_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "wheels"
    folder.mkdir()
    write(folder, "1.0")
    return folder


def write(folder: Path, version: str) -> None:
    with zipfile.ZipFile(folder / "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl", "w") as archive:
        archive.writestr("torch/version.py", f"__version__ = '{version}'\ncuda = '13.0'\n")
        archive.writestr("torch-2.11.0.dist-info/METADATA", f"Name: torch\nVersion: {version}\n")
        archive.writestr("torch-2.11.0.dist-info/RECORD", "")


def collected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """The version of torch that a check reports, and how often the check collected facts."""
    calls = 0
    collect = doctor.collect

    def counted(scene: Scene) -> Environment:
        nonlocal calls
        calls += 1
        return collect(scene)

    with monkeypatch.context() as patch:
        patch.setattr(doctor, "collect", counted)
        report = doctor.examine(TargetSpec("wheels", str(folder)))
    return str(report.facts["torch"]).partition(",")[0], calls


def test_the_same_wheels_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [collected(folder, monkeypatch) for _ in range(2)] == [("1.0", 1), ("1.0", 0)]


def test_other_bytes_are_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected(folder, monkeypatch)
    write(folder, "1.0.1")
    assert collected(folder, monkeypatch) == ("1.0.1", 1)


def test_other_code_reads_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected(folder, monkeypatch)
    (tmp_path / "checks").mkdir()
    for path in resources.checks().iterdir():
        (tmp_path / "checks" / path.name).symlink_to(path)
    table = tmp_path / "checks/providers.toml"
    text = table.read_text()
    table.unlink()
    table.write_text(f"{text}\n# another line\n")
    monkeypatch.setattr(resources, "checks", lambda: tmp_path / "checks")
    kept._code.cache_clear()
    try:
        assert collected(folder, monkeypatch) == ("1.0", 1)
    finally:
        kept._code.cache_clear()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_facts_that_cannot_be_kept_are_read_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Root may write anywhere, so a file where a folder has to be (and the reverse) stands for a cache of others."""
    collected(folder, monkeypatch)
    (path,) = (resources.cache() / "facts/environment").glob("*/*.json")
    path.unlink()
    if kind == "folder":
        (path / "of others").mkdir(parents=True)
    else:
        path.parent.rmdir()
        path.parent.touch()
    assert [collected(folder, monkeypatch) for _ in range(2)] == [("1.0", 1), ("1.0", 1)]


def test_what_is_kept_and_damaged_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected(folder, monkeypatch)
    (path,) = (resources.cache() / "facts/environment").glob("*/*.json")
    path.write_bytes(path.read_bytes()[:-100])
    assert collected(folder, monkeypatch) == ("1.0", 1)
    assert collected(folder, monkeypatch) == ("1.0", 0)
