"""Apply and revert on disk: bytes, bytecode, links, interruption at every step."""

from __future__ import annotations

import csv
import fcntl
import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from stack_builder.diagnose.patches.site import Site
from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.patch import apply, revert
from stack_builder.patch.transaction import recover
from stack_builder.patchset.model import Patch
from tests.unit.patch.conftest import FILES, HEAD, WRAPPER_PATCH, make_patch, record_of, tree
from tests.unit.patch.interruption import interrupted, killed_before_step

Install = Callable[[dict[str, bytes]], Site]
RECORD = "demo-1.0.dist-info/RECORD"


@pytest.fixture
def series(tables_patch: Patch, wrapper_patch: Patch) -> list[Patch]:
    return [tables_patch, wrapper_patch]


def test_applying_twice_is_applying_once_and_reverting_gives_the_wheels_bytes(site: Site, series: list[Patch]) -> None:
    before = tree(site.root)
    assert apply(site, series)
    once = tree(site.root)
    assert once["demo/wrapper.py"] != before["demo/wrapper.py"]
    assert apply(site, series) == ()
    assert tree(site.root) == once
    assert revert(site)
    assert tree(site.root) == before
    assert sorted(path.name for path in site.root.iterdir()) == ["demo", "demo-1.0.dist-info"]
    assert revert(site) == ()


def test_patched_python_runs(site: Site, series: list[Patch]) -> None:
    apply(site, series)
    code = (
        "from demo.tables import SIZES, MiB; from demo.comm import Communicator; from demo.wrapper import Wrapper;"
        "assert SIZES[12] == SIZES[10] == {2: 64 * MiB, 8: 128 * MiB}; assert Communicator().sizes(12) == [6, 8];"
        "assert Wrapper().head(3) == 21"
    )
    subprocess.run([sys.executable, "-B", "-c", code], cwd=site.root, check=True)


def test_one_patch_after_the_other_ends_where_both_at_once_do(site: Site, series: list[Patch]) -> None:
    before = tree(site.root)
    apply(site, series[:1])
    alone = tree(site.root)
    apply(site, series[1:])
    both = tree(site.root)
    revert(site)
    apply(site, series)
    assert tree(site.root) == both
    revert(site, [series[1].id])
    assert tree(site.root) == alone
    revert(site, [series[0].id])
    assert tree(site.root) == before


def test_a_dry_run_plans_the_same_and_writes_nothing(site: Site, series: list[Patch]) -> None:
    before = tree(site.root)
    planned = apply(site, series, dry_run=True)
    assert tree(site.root) == before
    done = apply(site, series)
    assert [(plan.writes, plan.removes) for plan in planned] == [(plan.writes, plan.removes) for plan in done]
    patched = tree(site.root)
    assert revert(site, dry_run=True)
    assert tree(site.root) == patched


def test_record_stays_true_and_other_rows_keep_their_form(install: Install, series: list[Patch]) -> None:
    files = {**FILES, "demo/odd, name.txt": b"x"}
    site = install(files)
    rows = (
        record_of(FILES, RECORD).replace(b"\n", b"\r\n") + b'"demo/odd, name.txt",sha256=xyz,1'
    )  # no newline at the end
    (site.root / RECORD).write_bytes(rows)
    apply(site, series)
    now = (site.root / RECORD).read_bytes()
    assert now.endswith(b'\r\n"demo/odd, name.txt",sha256=xyz,1')
    changed = {"demo/tables.py", "demo/comm.py", "demo/wrapper.py"}
    kept = [row for row in rows.splitlines(keepends=True) if row.split(b",")[0].decode() not in changed]
    assert [row for row in now.splitlines(keepends=True) if row in kept] == kept
    listed = {row[0]: row for row in csv.reader(now.decode().splitlines())}
    for path in tree(site.root):
        assert path in listed
    for path in changed:
        assert listed[path][2] == str(len(site.read(path)))
    revert(site)
    assert (site.root / RECORD).read_bytes() == rows


@pytest.mark.parametrize("path", ["demo/tables.py", "demo/wrapper.py"])
def test_a_file_changed_by_hand_stops_everything(site: Site, series: list[Patch], path: str) -> None:
    (site.root / path).write_bytes(FILES[path] + b"# by hand\n")
    before = tree(site.root)
    with pytest.raises(IntegrityError, match="not the file that RECORD lists"):
        apply(site, series)
    assert tree(site.root) == before


@pytest.mark.parametrize("path", ["demo/tables.py", RECORD])
def test_a_file_changed_after_patching_is_neither_patched_nor_reverted(
    site: Site, series: list[Patch], path: str
) -> None:
    apply(site, series[:1])
    (site.root / path).write_bytes(site.read(path) + b"# by hand\n")
    before = tree(site.root)
    for action in (lambda: apply(site, series), lambda: revert(site)):
        with pytest.raises(IntegrityError, match="changed after"):
            action()
        assert tree(site.root) == before


@pytest.mark.parametrize("damage", ["gone", "changed", "manifest", "patch"])
def test_a_damaged_manifest_or_original_stops_a_revert(site: Site, series: list[Patch], damage: str) -> None:
    apply(site, series)
    kept = site.root / "demo-1.0.dist-info/stackb/originals" / sha256(FILES["demo/comm.py"]).hexdigest()
    manifest = site.root / "demo-1.0.dist-info/stackb/patches.json"
    if damage == "gone":
        kept.unlink()
    elif damage == "changed":
        kept.write_bytes(b"other")
    elif damage == "manifest":
        manifest.write_text("{}")
    else:
        manifest.write_text(manifest.read_text().replace("key = 12", "key = 13"))
    before = tree(site.root)
    with pytest.raises(IntegrityError, match="Reinstall demo=="):
        revert(site)
    assert tree(site.root) == before


def test_an_unknown_or_unused_patch_changes_nothing(site: Site, series: list[Patch]) -> None:
    before = tree(site.root)
    with pytest.raises(UsageError, match="patch 'other' is not applied"):
        revert(site, ["other"])
    misfit = make_patch("misfit", WRAPPER_PATCH.replace('"Wrapper"', '"Other"'))
    with pytest.raises(UsageError, match="does not fit"):
        apply(site, [*series, misfit])
    elsewhere = make_patch("elsewhere", WRAPPER_PATCH, HEAD.replace('"demo"', '"other"'))
    with pytest.raises(UsageError, match="other is not installed"):
        apply(site, [*series, elsewhere])
    assert tree(site.root) == before


def test_another_revision_of_an_applied_patch_is_not_put_on_top(site: Site, wrapper_patch: Patch) -> None:
    apply(site, [wrapper_patch])
    before = tree(site.root)
    with pytest.raises(UsageError, match="another revision of patch 'wrapper' is applied"):
        apply(site, [make_patch("wrapper", WRAPPER_PATCH + "# revised\n")])
    assert tree(site.root) == before


def test_stale_bytecode_goes_even_where_python_would_trust_it(site: Site, wrapper_patch: Patch) -> None:
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compiled = Path(py_compile.compile(str(site.root / "demo/wrapper.py"), invalidation_mode=mode, doraise=True))
    other = Path(py_compile.compile(str(site.root / "demo/tables.py"), invalidation_mode=mode, doraise=True))
    (compiled.parent / "wrapper_more.cpython-311.pyc").write_bytes(b"another module's")
    apply(site, [wrapper_patch])
    assert sorted(path.name for path in compiled.parent.iterdir()) == sorted(
        ["wrapper_more.cpython-311.pyc", other.name]
    )
    code = "from demo.wrapper import Wrapper; assert Wrapper().head(3) == 21"
    subprocess.run([sys.executable, "-B", "-c", code], cwd=site.root, check=True)


def test_modes_are_kept_and_hard_links_are_not_written_through(
    site: Site, wrapper_patch: Patch, tmp_path: Path
) -> None:
    """A uv cache shares its files with every environment: in-place writing would patch them all."""
    os.link(site.root / "demo/wrapper.py", tmp_path / "cached.py")
    (site.root / "demo/wrapper.py").chmod(0o640)
    apply(site, [wrapper_patch])
    assert (tmp_path / "cached.py").read_bytes() == FILES["demo/wrapper.py"]
    assert (site.root / "demo/wrapper.py").stat().st_mode & 0o777 == 0o640


def test_a_package_linked_from_elsewhere_is_left_alone(site: Site, wrapper_patch: Patch, tmp_path: Path) -> None:
    (site.root / "demo").rename(tmp_path / "checkout")
    (site.root / "demo").symlink_to(tmp_path / "checkout")
    with pytest.raises(IntegrityError, match="is a link to"):
        apply(site, [wrapper_patch])
    assert (tmp_path / "checkout/wrapper.py").read_bytes() == FILES["demo/wrapper.py"]


def test_two_runs_do_not_meet(site: Site, wrapper_patch: Patch) -> None:
    handle = os.open(site.root, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(MachineError, match="another stackb patch is at work"):
            apply(site, [wrapper_patch])
    finally:
        os.close(handle)
    assert apply(site, [wrapper_patch])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process leaves what it has written to the kernel; fsync is for power cuts, and slow."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def tree_without_journal(site: Site) -> dict[str, bytes]:
    return {path: data for path, data in tree(site.root).items() if not path.startswith(".stackb-journal/")}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("way", ["apply", "revert"])
def test_a_kill_before_any_step_leaves_the_old_or_the_new_state(site: Site, series: list[Patch], way: str) -> None:
    py_compile.compile(str(site.root / "demo/wrapper.py"), doraise=True)
    if way == "revert":
        apply(site, series)
        py_compile.compile(str(site.root / "demo/wrapper.py"), doraise=True)
    old_tree = site.root.parent / "old"
    shutil.copytree(site.root, old_tree)
    action = (lambda: apply(site, series)) if way == "apply" else (lambda: revert(site))
    action()
    new, old = tree(site.root), tree(old_tree)
    outcomes = []
    while True:
        shutil.rmtree(site.root)
        shutil.copytree(old_tree, site.root)
        if not killed_before_step(len(outcomes), action):
            break
        if not site.interrupted:
            assert tree_without_journal(site) in (old, new)
        recover(site)
        assert tree(site.root) in (old, new)
        assert not site.interrupted
        outcomes.append(tree(site.root) == new)
    assert outcomes == sorted(outcomes)  # nothing, then everything: one moment of commit
    assert outcomes.count(True) > 5
    assert outcomes.count(False) > 5
    assert tree(site.root) == new


@pytest.mark.usefixtures("quick")
def test_a_kill_during_recovery_is_recovered_from(site: Site, series: list[Patch]) -> None:
    old_tree = site.root.parent / "old"
    shutil.copytree(site.root, old_tree)
    interrupted(site, series)
    half = site.root.parent / "half"
    shutil.copytree(site.root, half)
    shutil.rmtree(site.root)
    shutil.copytree(old_tree, site.root)
    apply(site, series)
    new = tree(site.root)
    kills = 0
    while True:
        shutil.rmtree(site.root)
        shutil.copytree(half, site.root)
        if not killed_before_step(kills, lambda: recover(site)):
            break
        recover(site)
        assert tree(site.root) == new
        kills += 1
    assert kills > 5


@pytest.mark.usefixtures("quick")
def test_the_next_run_finishes_an_interrupted_one(site: Site, series: list[Patch]) -> None:
    interrupted(site, series)
    with pytest.raises(UsageError, match="a run was interrupted"):
        apply(site, series, dry_run=True)
    assert apply(site, series) == ()
    assert b"12:" in site.read("demo/tables.py")


@pytest.mark.usefixtures("quick")
def test_a_file_changed_after_an_interruption_is_not_overwritten(site: Site, series: list[Patch]) -> None:
    interrupted(site, series)
    (site.root / "demo/comm.py").write_bytes(b"by hand")
    before = tree(site.root)
    with pytest.raises(IntegrityError, match="changed after a run was interrupted"):
        apply(site, series)
    assert tree(site.root) == before


@pytest.mark.usefixtures("quick")
def test_a_journal_that_leads_elsewhere_is_refused(site: Site, series: list[Patch], tmp_path: Path) -> None:
    interrupted(site, series)
    journal = site.root / ".stackb-journal/journal.json"
    journal.write_text(journal.read_text().replace('"demo/comm.py"', '"../../../../victim.py"'))
    with pytest.raises(IntegrityError, match="journal of an interrupted run is damaged"):
        recover(site)


def test_a_full_disk_leaves_the_old_state(site: Site, series: list[Patch], monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(site.root)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        apply(site, series)
    assert tree(site.root) == before
    assert not (site.root / ".stackb-journal").exists()


def test_pip_takes_everything_along(site: Site, wrapper_patch: Patch, tmp_path: Path) -> None:
    """The manifest and the originals are listed in RECORD, so an uninstall leaves nothing."""
    wheel = tmp_path / "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in {**FILES, RECORD: record_of(FILES, RECORD)}.items():
            archive.writestr(path, data)
    venv = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "--no-index", str(wheel)], check=True)
    fresh = Site(next(venv.glob("lib/python3*/site-packages")).resolve())
    before = {path: data for path, data in tree(fresh.root).items() if not path.startswith("demo/__pycache__")}
    assert (fresh.root / "demo/__pycache__").is_dir()  # pip compiles, and lists the result in RECORD
    apply(fresh, [wrapper_patch])
    assert b"wrapper.cpython" not in fresh.read(RECORD)
    assert b"comm.cpython" in fresh.read(RECORD)
    revert(fresh)
    after = tree(fresh.root)
    assert {path: after[path] for path in before} == before
    apply(fresh, [wrapper_patch])
    subprocess.run([*pip, "uninstall", "--yes", "demo"], check=True)
    assert list(tree(fresh.root)) == []
