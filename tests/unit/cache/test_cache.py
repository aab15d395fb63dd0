"""``stackb cache`` on a cache that a fetch and a build of two tiny wheels have filled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack_builder.cache.lock import in_use
from stack_builder.cli.app import run
from stack_builder.files import claimed_file, claimed_folder
from tests.hardening.plugin import Recorder
from tests.unit.image.conftest import base_layout, kit, make_wheel  # noqa: F401 - fixtures

Call = Callable[..., int]


@pytest.fixture
def cache(private_cache: Path, build: Call) -> Path:
    assert build() == 0
    return private_cache


@pytest.fixture
def build(
    make_wheel: Callable[..., Path],  # noqa: F811
    kit: SimpleNamespace,  # noqa: F811
    base_layout: Path,  # noqa: F811
    tmp_path: Path,
) -> Call:
    place = tmp_path / "tiny"
    kit.write_stack(
        place, [kit.wheel_record(make_wheel(name, {f"{name}.py": b"x = 1\n"})) for name in ("demo", "tool")]
    )
    words = ["build", str(place), "--base", f"oci:{base_layout}", "--offline", "--from", str(tmp_path / "wheels")]

    def call() -> int:
        return run([*words, "--no-bytecode", "--jobs", "1", "--output", str(tmp_path / "out")])

    return call


def on_disk(folder: Path) -> int:
    """Bytes that the files below a folder take, each once, as find and the file system say."""
    argv = ["find", folder, "-type", "f", "-not", "-name", "*.lock", "-printf", "%D:%i %b\n"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    return 512 * sum(int(line.split()[1]) for line in set(lines))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def age(folder: Path, days: float) -> None:
    then = time.time() - days * 86400
    for path in folder.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def kinds(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert run(["cache", *arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    return dict(shown.get("kinds") or shown["removed"])


def test_info_counts_what_the_file_system_counts(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = kinds(capsys, "info")
    assert sum(int(str(kind["bytes"])) for kind in found.values()) == on_disk(cache)
    assert found["wheels"]["items"] == 2
    assert found["wheels"]["needed_bytes"] == found["wheels"]["bytes"]
    digest = json.loads((cache.parent / "out/index.json").read_bytes())["manifests"][0]["digest"]
    assert found["wheels"]["by"] == [f"image {digest[7:19]}", "tiny"]
    assert run(["cache", "info"]) == 0
    assert capsys.readouterr().out.startswith(f"{cache}: ")


def test_a_wheel_that_is_arriving_counts_once(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = cache / "wheels" / "ab" / f"ab{'0' * 62}" / ".part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    found = kinds(capsys, "info")
    assert (found["wheels"]["items"], found["unfinished"]["items"]) == (2, 1)
    part.unlink()


def test_nothing_that_is_needed_or_was_used_lately_goes(cache: Path, build: Call, hardened: Recorder) -> None:
    before = files(cache)
    assert run(["cache", "prune"]) == 0
    assert files(cache) == before
    age(cache, 100)
    assert run(["cache", "prune"]) == 0
    assert {path for path in before if path.startswith(("wheels", "oci", "receipts"))} <= files(cache)
    assert build() == 0
    hardened("cache", "prune after a build, and of a cache 100 days old whose stack is there", tried=2, survived=2)


def test_what_nobody_needs_goes_and_the_disk_gains_what_it_says(
    cache: Path, build: Call, capsys: pytest.CaptureFixture[str], hardened: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "tiny").rename(tmp_path / "gone")
    before, size = files(cache), on_disk(tmp_path)
    notes = sum(path.stat().st_blocks * 512 for path in (cache / "wheels").rglob(".checked"))
    assert kinds(capsys, "prune") == {}
    age(cache, 100)
    planned = kinds(capsys, "prune", "--dry-run")
    assert files(cache) == before
    assert kinds(capsys, "prune") == planned
    assert files(cache) == set()
    # wheels and blobs are hard links into the folder of wheels and the output: the disk gains nothing by them
    assert planned["wheels"] == {"items": 2, "bytes": notes}
    assert sum(int(str(kind["bytes"])) for kind in planned.values()) == size - on_disk(tmp_path)
    (tmp_path / "gone").rename(tmp_path / "tiny")
    assert build() == 0
    hardened("cache", "prune of a cache 100 days old whose stack is gone")


def test_all_goes_if_asked_for(cache: Path, build: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "prune", "--all", "--older-than", "3"]) == 2
    assert run(["cache", "prune", "--all"]) == 0
    assert files(cache) == set()
    assert capsys.readouterr().out.splitlines()[-1].endswith(" freed")
    assert build() == 0


def test_prune_keeps_off_while_a_command_uses_the_cache(
    cache: Path, capsys: pytest.CaptureFixture[str], hardened: Recorder
) -> None:
    before = files(cache)
    capsys.readouterr()
    with in_use():
        assert run(["cache", "prune", "--all"]) == 3
    line = capsys.readouterr().err
    assert files(cache) == before
    hardened("cache", "prune --all beside a command that uses the cache", code=3, shown=line)


def test_what_killed_commands_left_goes_and_what_is_worked_on_stays(cache: Path, hardened: Recorder) -> None:
    before = files(cache)
    left = ["oci/partial/tmpx", "layers/.k.json.x.part", "scratch/verify-x/big", "base/new-x/tree/file"]
    for name in left:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(b"half")
    with claimed_file(cache / "oci/partial") as (one, _), claimed_folder(cache / "scratch", prefix="saved-") as other:
        assert run(["cache", "prune"]) == 0
        assert one.exists()
        assert other.exists()
    assert files(cache) == before
    hardened("cache", "prune after kills, beside what is worked on", tried=len(left), survived=len(left))


def test_verify_says_what_it_cannot_check(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cache / "bytecode").mkdir(exist_ok=True)
    (cache / "bytecode" / "x.zip").write_bytes(b"")
    (cache / "members" / "ab").mkdir(parents=True)
    (cache / "members" / "ab" / "one").write_bytes(b"")
    (cache / "members" / "ab" / "two").write_bytes(b"")
    capsys.readouterr()
    assert run(["cache", "verify", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (skipped,) = report["skipped"]
    assert (report["verdict"], skipped["rule"]) == ("incomplete", "CACHE001")
    assert "2 members (unpacked members of archives)" in skipped["reason"]
    assert "1 bytecode (compiled modules)" in skipped["reason"]
    checked = {"wheels", "oci", "receipts", "debs"}
    others = {
        path.name for path in cache.iterdir() if path.is_dir() and any(p.is_file() for p in path.rglob("*"))
    } - checked
    assert {name for name in others if f" {name} (" not in skipped["reason"]} == set()


@pytest.mark.parametrize("place", ["wheels", "oci"])
def test_a_flipped_byte_is_named_and_mended(
    place: str, cache: Path, build: Call, capsys: pytest.CaptureFixture[str], hardened: Recorder
) -> None:
    assert run(["cache", "verify"]) == 0
    shutil.rmtree(cache.parent / "out")
    shutil.move(cache.parent / "wheels", cache.parent / "elsewhere")
    victim = next(path for path in sorted((cache / place).rglob("*")) if path.is_file() and path.stat().st_size > 100)
    shutil.copytree(cache.parent / "elsewhere", cache.parent / "wheels")  # no more the inodes that are spoiled
    data = bytearray(victim.read_bytes())
    status = victim.stat()
    victim.chmod(0o644)
    data[50] ^= 1
    victim.write_bytes(data)
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))  # not even the time tells
    capsys.readouterr()
    assert run(["cache", "verify", "--format", "json"]) == 1
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert (finding["rule"], finding["object"]) == ("CACHE001", str(victim.relative_to(cache)))
    assert victim.exists()
    assert run(["cache", "verify", "--repair"]) == 1
    assert not victim.exists()
    assert run(["cache", "verify"]) == 0
    assert build() == 0
    assert run(["cache", "verify"]) == 0
    hardened("cache", f"a flipped byte in {place}, size and time as before", code=1, shown=finding["title"])
