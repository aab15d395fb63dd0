"""``stackb patch`` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack_builder.cli.app import run
from stack_builder.diagnose.patches.site import Site
from stack_builder.errors import ExitCode
from stack_builder.patchset import model
from stack_builder.patchset.model import Patch
from tests.unit.patch.conftest import HEAD, TABLE_PATCH, WRAPPER_PATCH, tree
from tests.unit.trees.oci_images import layer_tar, write_layout


@pytest.fixture
def stack(site: Site, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stack with patches of its own for the demo distribution, as the default place for stacks."""
    folder = tmp_path_factory.mktemp("stacks") / "demo-1.0"
    (folder / "patches").mkdir(parents=True)
    for name, body in {"tables": TABLE_PATCH, "wrapper": WRAPPER_PATCH}.items():
        (folder / "patches" / f"{name}.toml").write_text(f'id = "{name}"\n{HEAD}\n{body}')
    (folder / "stack.toml").write_text(
        '[stack]\nname = "demo-1.0"\ndescription = "a demo"\npython = "3.11"\ncuda = "13.0"\ngpu = ["sm_120"]\n'
        'min_driver = "580.65.06"\n[requires]\ndemo = "==1.0"\n[patches]\nseries = ["tables", "wrapper"]\n'
        '[base]\nrecipe = "debian-bookworm"\nglibc = "2.36"\n'
    )
    monkeypatch.setenv("STACKB_LOCKFILES", str(folder.parent))
    return "demo-1.0"


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["patch", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_way_through(site: Site, stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"venv:{site.root.parents[2]}"
    before = tree(site.root)

    code, out, _ = call(capsys, "status", target, "--stack", stack, "--format", "json")
    report = json.loads(out)
    assert code == ExitCode.FINDINGS
    assert [patch["state"] for patch in report["facts"]["patches"]] == ["no-effect-here", "applies"]
    assert sorted(found["rule"] for found in report["findings"]) == ["PATCH004", "PATCH006", "PATCH006"]

    code, planned, err = call(capsys, "apply", target, "--stack", stack, "--dry-run")
    assert (code, tree(site.root)) == (ExitCode.CLEAN, before)
    assert "nothing was changed" in err
    code, done, _ = call(capsys, "apply", target, "--stack", stack)
    assert (code, done) == (ExitCode.CLEAN, planned)
    assert "+    12: {" in done
    assert "write  demo-1.0.dist-info/RECORD" in done

    code, out, err = call(capsys, "apply", target, "--stack", stack)
    assert (code, out) == (ExitCode.CLEAN, "")
    assert "nothing to apply" in err
    code, out, _ = call(capsys, "status", target, "--stack", stack)
    assert code == ExitCode.CLEAN
    assert out.count("applied") == 2

    code, out, _ = call(capsys, "export", target, "--stack", stack)
    assert code == ExitCode.CLEAN
    assert done.startswith(out)

    code, _, _ = call(capsys, "revert", target)
    assert (code, tree(site.root)) == (ExitCode.CLEAN, before)
    code, out, err = call(capsys, "revert", target)
    assert (code, out) == (ExitCode.CLEAN, "")
    assert "no patch is applied" in err


def test_an_image_is_looked_at_and_not_touched(
    site: Site, stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "usr/lib/python3.11/site-packages"

    def image(name: str) -> str:
        rows = [("usr/bin/python3", b""), *((f"{where}/{path}", data) for path, data in tree(site.root).items())]
        return f"oci:{write_layout(tmp_path / name, [layer_tar(rows)])}"

    def states(target: str) -> list[str]:
        code, out, _ = call(capsys, "status", target, "--stack", stack, "--format", "json")
        report = json.loads(out)
        assert code == (ExitCode.FINDINGS if "PATCH006" in {found["rule"] for found in report["findings"]} else 0)
        return [patch["state"] for patch in report["facts"]["patches"]]

    assert states(image("plain")) == ["no-effect-here", "applies"]
    code, diff, _ = call(capsys, "export", f"oci:{tmp_path / 'plain'}", "--stack", stack)
    assert (code, diff.count("+++ b/demo/")) == (ExitCode.CLEAN, 3)
    assert call(capsys, "apply", f"venv:{site.root.parents[2]}", "--stack", stack)[0] == ExitCode.CLEAN
    assert states(image("patched")) == ["applied", "applied"]
    (site.root / "demo/tables.py").write_bytes(b"by hand")
    assert "tables   drifted" in call(capsys, "status", image("changed"), "--stack", stack)[1]
    code, _, err = call(capsys, "apply", f"oci:{tmp_path / 'plain'}", "--stack", stack)
    assert code == ExitCode.USAGE
    assert "not in oci:" in err


def test_applying_whatever_applies_names_what_has_drifted(
    site: Site,
    tables_patch: Patch,
    wrapper_patch: Patch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shipped = {patch.id: patch for patch in (tables_patch, wrapper_patch)}
    monkeypatch.setattr(model, "available", lambda folder=None: shipped)
    (site.root / "demo/wrapper.py").write_bytes(b"by hand")
    code, out, err = call(capsys, "apply", f"venv:{site.root.parents[2]}")
    assert code == ExitCode.FINDINGS
    assert "+++ b/demo/tables.py" in out
    assert "left out: wrapper, drifted: demo/wrapper.py is not the file that RECORD lists" in err
    assert site.read("demo/wrapper.py") == b"by hand"


def test_a_patch_of_ones_own_from_a_file(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrapper.toml"
    file.write_text(f'id = "wrapper"\n{HEAD}\n{WRAPPER_PATCH}')
    target = f"venv:{site.root.parents[2]}"
    before = tree(site.root)
    assert call(capsys, "apply", target, "--patch", str(file))[0] == ExitCode.CLEAN
    assert "self.inner.head(scale)" in site.read("demo/wrapper.py").decode()
    code, out, _ = call(capsys, "export", target, "--patch", str(file), "--files", str(tmp_path / "out"))
    assert (code, out) == (ExitCode.CLEAN, "")
    assert tree(tmp_path / "out") == {"demo/wrapper.py": site.read("demo/wrapper.py")}
    assert call(capsys, "revert", target, "--patch", "wrapper", "--patch", "nope")[0] == ExitCode.USAGE
    assert call(capsys, "revert", target)[0] == ExitCode.CLEAN
    assert tree(site.root) == before


def test_a_drifted_file_is_one_line_and_untouched(site: Site, stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    (site.root / "demo/comm.py").write_bytes(b"by hand")
    before = tree(site.root)
    target = f"venv:{site.root.parents[2]}"
    code, out, err = call(capsys, "apply", target, "--stack", stack)
    assert (code, out) == (ExitCode.FINDINGS, "")
    assert err.count("\n") == 1
    assert "demo/comm.py is not the file that RECORD lists" in err
    assert tree(site.root) == before
    code, out, _ = call(capsys, "status", target, "--stack", stack, "--format", "json")
    found = json.loads(out)["findings"]
    assert code == ExitCode.FINDINGS
    assert ("PATCH001", "error") in {(one["rule"], one["severity"]) for one in found}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "--gpu", "blackwell"], "names no GPU architecture"),
        (["status", "--topology", "token-ring"], "token-ring"),
        (["status", "--patch", "nope"], "no patch 'nope'"),
        (["apply", "image:demo:1"], "not in image:"),
        (["revert", "image:demo:1"], "not in image:"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_usage_errors(
    site: Site, stack: str, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    if len(arguments) == 3:
        arguments = [arguments[0], f"venv:{site.root.parents[2]}", *arguments[1:], "--stack", stack]
    code, _, err = call(capsys, *arguments)
    assert code == ExitCode.USAGE
    assert words in err
    assert "Traceback" not in err


def test_list_shows_what_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "list", "--json")
    assert code == ExitCode.CLEAN
    assert [patch["id"] for patch in json.loads(out)] == ["eagle3-graph-layers", "kimi-k25-eagle3", "symm-mem-sm12"]
