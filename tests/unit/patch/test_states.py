"""Six states, and what a plan makes of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack_builder.diagnose.patches.site import Site
from stack_builder.errors import IntegrityError, UsageError
from stack_builder.patchset import model
from stack_builder.patchset.delegation import from_delegation
from stack_builder.patchset.model import Hardware, Patch, Topology
from stack_builder.patchset.plan import patched_files, plan
from stack_builder.patchset.states import State, Status, assess
from tests.unit.patch.conftest import FILES, HEAD, TABLE_PATCH, WRAPPER_PATCH, make_patch, record_of

Install = Callable[[dict[str, bytes]], Site]


def one(site: Site, patch: Patch, hardware: Hardware | None = None) -> Status:
    return assess([patch], site.distributions()["demo"], hardware)[0]


def test_a_patch_applies(site: Site, tables_patch: Patch) -> None:
    assert one(site, tables_patch).state is State.APPLIES


def test_upstream_has_it_by_a_sign(install: Install, tables_patch: Patch) -> None:
    comm = FILES["demo/comm.py"].replace(b"self.WORLDS[major]", b"self.WORLDS.get(major)")
    status = one(install({**FILES, "demo/comm.py": comm}), tables_patch)
    assert (status.state, status.detail) == (State.OBSOLETE, "upstream since demo 2.0")


def test_upstream_has_every_change(install: Install, wrapper_patch: Patch) -> None:
    wrapper = FILES["demo/wrapper.py"].replace(b"class Wrapper:\n", b"class Wrapper:\n    head = None\n\n")
    assert one(install({**FILES, "demo/wrapper.py": wrapper}), wrapper_patch).state is State.OBSOLETE


@pytest.mark.parametrize(
    ("gpu", "topology", "state"),
    [
        ("sm_120", Topology.PCIE, State.NO_EFFECT),
        ("sm_120", None, State.NO_EFFECT),  # an effect has to be shown
        ("sm_120", Topology.NVSWITCH, State.APPLIES),
        ("sm_100", Topology.PCIE, State.APPLIES),
        (None, Topology.PCIE, State.APPLIES),
    ],
)
def test_no_effect_depends_on_the_hardware(
    site: Site, tables_patch: Patch, gpu: str | None, topology: Topology | None, state: State
) -> None:
    status = one(site, tables_patch, Hardware(gpu, topology))
    assert status.state is state
    assert (status.no_effect == "the demo has no effect over PCIe") == (state is State.NO_EFFECT)


def test_a_file_changed_by_hand_has_drifted(site: Site, tables_patch: Patch) -> None:
    (site.root / "demo/tables.py").write_bytes(FILES["demo/tables.py"] + b"# by hand\n")
    status = one(site, tables_patch)
    assert status.state is State.DRIFTED
    assert "demo/tables.py is not the file that RECORD lists" in status.detail


def test_a_file_removed_by_hand_has_drifted(site: Site, tables_patch: Patch) -> None:
    (site.root / "demo/tables.py").unlink()
    assert one(site, tables_patch).state is State.DRIFTED


def test_a_release_with_other_bytes_than_recorded_has_drifted(site: Site) -> None:
    known = f'[[known]]\nversions = ["1.0"]\nfile = "demo/wrapper.py"\nbefore = "{"0" * 64}"\nafter = "{"1" * 64}"\n'
    status = one(site, make_patch("wrapper", WRAPPER_PATCH + known))
    assert status.state is State.DRIFTED
    assert "is not the file of demo 1.0" in status.detail


@pytest.mark.parametrize(
    ("body", "head", "why"),
    [
        (WRAPPER_PATCH.replace('"Wrapper"', '"Other"'), HEAD, "class Other is defined 0 times"),
        (WRAPPER_PATCH, HEAD.replace(">=1.0,<2", ">=1.1"), "it is for versions >=1.1"),
        (WRAPPER_PATCH.replace("demo/wrapper.py", "demo/gone.py"), HEAD, "demo 1.0 has no demo/gone.py"),
    ],
)
def test_what_does_not_fit_is_a_conflict(site: Site, body: str, head: str, why: str) -> None:
    patch = make_patch("wrapper", body, head)
    status = one(site, patch)
    assert status.state is State.CONFLICT
    assert why in status.detail
    with pytest.raises(UsageError, match="does not fit"):
        plan(site.distributions()["demo"], [patch])


def test_patches_of_one_file_build_on_each_other(site: Site) -> None:
    first = make_patch(
        "first", '[[operation]]\nop = "replace-text"\nfile = "demo/comm.py"\nold = "[8]"\nnew = "[2, 8]"\n'
    )
    second = make_patch(
        "second", '[[operation]]\nop = "replace-text"\nfile = "demo/comm.py"\nold = "[2, 8]"\nnew = "[3]"\n'
    )
    distribution = site.distributions()["demo"]
    assert [status.state for status in assess([first, second], distribution)] == [State.APPLIES, State.APPLIES]
    assert [status.state for status in assess([second, first], distribution)] == [State.CONFLICT, State.APPLIES]
    assert b"10: [3]" in plan(distribution, [first, second]).writes["demo/comm.py"]


def test_an_unused_patch_of_a_series_is_an_error(install: Install, tables_patch: Patch) -> None:
    comm = FILES["demo/comm.py"].replace(b"self.WORLDS[major]", b"self.WORLDS.get(major)")
    site = install({**FILES, "demo/comm.py": comm})
    with pytest.raises(UsageError, match="patch 'tables' is unused: upstream since demo"):
        plan(site.distributions()["demo"], [tables_patch])


def test_an_operation_that_gives_other_bytes_than_recorded_is_stopped(site: Site) -> None:
    import hashlib

    before = hashlib.sha256(FILES["demo/wrapper.py"]).hexdigest()
    known = f'[[known]]\nversions = ["1.0"]\nfile = "demo/wrapper.py"\nbefore = "{before}"\nafter = "{"1" * 64}"\n'
    with pytest.raises(IntegrityError, match="gives other bytes than it records"):
        plan(site.distributions()["demo"], [make_patch("wrapper", WRAPPER_PATCH + known)])


def test_the_files_of_a_layer_hold_a_true_record(site: Site, tables_patch: Patch, wrapper_patch: Patch) -> None:
    layer = patched_files(site.distributions()["demo"], [tables_patch, wrapper_patch])
    merged = {**FILES, **layer}
    listed = merged.pop("demo-1.0.dist-info/RECORD").decode()
    expected = record_of(merged, "demo-1.0.dist-info/RECORD").decode()
    assert sorted(listed.splitlines()) == sorted(expected.splitlines())


def test_the_diff_is_one_that_git_applies(
    site: Site, tmp_path: Path, tables_patch: Patch, wrapper_patch: Patch
) -> None:
    change = plan(site.distributions()["demo"], [tables_patch, wrapper_patch])
    for path in change.modules:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(FILES[path])
    subprocess.run(["git", "apply"], input=change.diff(), cwd=tmp_path, check=True, capture_output=True)
    for path in change.modules:
        assert (tmp_path / path).read_bytes() == change.writes[path]


def test_the_diff_of_a_file_without_last_newline(install: Install, tmp_path: Path) -> None:
    site = install({**FILES, "demo/wrapper.py": b"class Wrapper:\n    x = 1"})
    patch = make_patch("wrapper", WRAPPER_PATCH)
    change = plan(site.distributions()["demo"], [patch])
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/wrapper.py").write_bytes(b"class Wrapper:\n    x = 1")
    subprocess.run(["git", "apply"], input=change.diff(), cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "demo/wrapper.py").read_bytes() == change.writes["demo/wrapper.py"]


def test_a_delegation_becomes_a_patch_that_works(site: Site) -> None:
    patch = from_delegation(
        patch_id="wrapper-head",
        distribution="demo",
        version="1.0",
        file="demo/wrapper.py",
        cls="Wrapper",
        methods={"head": "    def head(self, scale=1):\n        return self.inner.head(scale)"},
        reason='a "reason" to delegate, with \\ and \x7f',
    )
    assert model.parse(patch.text, "again").sha256 == patch.sha256
    assert patch.spec.reason == 'a "reason" to delegate, with \\ and \x7f'
    data = plan(site.distributions()["demo"], [patch]).writes["demo/wrapper.py"]
    space: dict[str, Callable[[], Any]] = {}
    exec(compile(data, "wrapper.py", "exec"), space)
    assert space["Wrapper"]().head(3) == 21


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("demo/tables.py", "../tables.py"), "operation.0.*file"),
        (("demo/tables.py", "/etc/tables.py"), "operation.0.*file"),
        (("demo/tables.py", "demo/../../tables.py"), "operation.0.*file"),
        (("demo/tables.py", "demo/tables.so"), "operation.0.*file"),
        (("copy_from = 10", "copy_form = 10"), "copy_form"),
        (("copy_from = 10", ""), "either value or copy_from"),
        (('text = "self.WORLDS.get("', ""), "give text, or class with methods"),
        (('gpu = ["sm_120"]', ""), "either gpu or gpu_other_than"),
        (("ensure-dict-key", "run-command"), "operation.0"),
    ],
)
def test_a_malformed_patch_is_a_usage_error_that_names_the_key(change: tuple[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_patch("tables", TABLE_PATCH.replace(*change))


def test_series(tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "own.toml").write_text(f'id = "own"\n{HEAD}\n{WRAPPER_PATCH}')
    assert [patch.id for patch in model.series(["own", "symm-mem-sm12"], tmp_path)] == ["own", "symm-mem-sm12"]
    with pytest.raises(UsageError, match="no patch 'own'"):
        model.series(["own"])
    with pytest.raises(UsageError, match="listed twice"):
        model.series(["own", "own"], tmp_path)
    (tmp_path / "patches" / "own.toml").rename(tmp_path / "patches" / "other.toml")
    with pytest.raises(UsageError, match="its id is 'own'"):
        model.available(tmp_path)


def test_the_identity_of_a_patch_is_what_sha256sum_prints() -> None:
    for patch_id, patch in model.available().items():
        file = Path(model.resources.checks()) / "patches" / f"{patch_id}.toml"
        printed = subprocess.run(["sha256sum", file], check=True, capture_output=True, text=True).stdout
        assert printed.split()[0] == patch.sha256
