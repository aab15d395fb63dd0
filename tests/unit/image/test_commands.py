"""``stackb build`` and ``stackb verify`` as a user calls them, on a stack of two tiny wheels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stack_builder.cli.app import run

MakeWheel = Callable[..., Path]


@pytest.fixture
def call(
    make_wheel: MakeWheel, kit: SimpleNamespace, base_layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Run ``stackb COMMAND …`` in a folder with a locked stack, ``tiny``, and its wheels."""
    records = [kit.wheel_record(make_wheel(name, {f"{name}.py": b"x = 1\n"})) for name in ("demo", "tool")]
    kit.write_stack(tmp_path / "tiny", records)
    monkeypatch.chdir(tmp_path)

    def stackb(command: str, *arguments: str) -> int:
        options = ["--offline", "--from", "wheels", "--jobs", "1"]
        if command == "build":
            options += ["tiny", "--base", f"oci:{base_layout}", "--no-bytecode"]
        return run([command, *options, *arguments])

    return stackb


def test_build_and_verify(call: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("build", "--dry-run") == 0
    dry = capsys.readouterr().out
    assert "fetch    2 wheels" in dry
    assert not (tmp_path / "out").exists()
    assert call("build") == 0
    said = capsys.readouterr().out
    digest = json.loads((tmp_path / "out/tiny/index.json").read_bytes())["manifests"][0]["digest"]
    assert said.splitlines()[0] == f"image   {digest}"
    assert "2 wheels against the lock" in said
    assert call("verify", "oci:out/tiny") == 0
    assert digest[:40] in capsys.readouterr().out
    blob = max((tmp_path / "out/tiny/blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    blob.unlink()
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    assert call("verify", "oci:out/tiny", "--format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in report["findings"]] == ["IMG001"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--gpu", "sm_90"], 2, "tiny is not for sm_90"),
        (["--gpu", "banana"], 2, "tiny is not for banana"),
        (["--base", "oci:/nowhere"], 2, "there is no such file or folder"),
        (["--base", "elsewhere:x"], 2, "no base 'elsewhere:x'"),
        (["--base", "recipe:debian-buster"], 2, "no base recipe 'debian-buster'"),
        (["--engine", "docker"], 2, "starts from an image"),
        (["--output", "docker:NOT A TAG"], 2, "is not an image name"),
    ],
)
def test_a_call_that_cannot_work_ends_in_one_line(
    arguments: list[str], code: int, message: str, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("build", *arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if line.startswith("stackb: ")]
    assert len(lines) == 1
    assert message in lines[0]


def test_a_wheel_that_was_changed_after_the_lock_is_refused(
    call: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wheel = tmp_path / "wheels" / "demo-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"\x01")
    assert call("build") == 1
    assert "demo-1.0-py3-none-any.whl" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_verify_wants_an_image(call: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", "wheels:wheels") == 2
    assert "Write oci:DIR|TAR or image:REF" in capsys.readouterr().err
