from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from stack_builder.diagnose import target
from stack_builder.diagnose.target import TargetSpec
from stack_builder.errors import UsageError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One thing of each kind in an empty working directory, and no active environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    (tmp_path / "env").mkdir()
    (tmp_path / "env/pyvenv.cfg").touch()
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout/oci-layout").touch()
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("oci-layout"), io.BytesIO())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/x-1-py3-none-any.whl").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "python3").touch(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("env", "venv"),
        ("./env", "venv"),
        ("layout", "oci"),
        ("image.tar", "oci"),
        ("folder", "wheels"),
        ("python3", "python"),
        ("cu130-sglang-0.5.23", "stack"),
        ("lmsysorg/sglang:v0.5.9", "image"),
        ("localhost:5000/stack:latest", "image"),
        (f"stack@sha256:{'0' * 64}", "image"),
    ],
)
def test_a_bare_name_with_one_reading_is_taken(places: Path, text: str, kind: str) -> None:
    assert target.parse(text, {}) == TargetSpec(kind, text)


@pytest.mark.parametrize(
    "text",
    [
        "venv:env",
        "python:python3",
        "oci:layout",
        "oci:image.tar",
        "wheels:folder",
        "image:stack",
        "stack:cu130-sglang-0.5.17",
    ],
)
def test_a_typed_name_is_taken(places: Path, text: str) -> None:
    kind, _, value = text.partition(":")
    assert target.parse(text, {}) == TargetSpec(kind, value)


def test_two_readings_are_refused_and_listed(places: Path) -> None:
    (places / "env/x-1-py3-none-any.whl").touch()
    with pytest.raises(UsageError, match="2 ways") as caught:
        target.parse("env", {})
    assert "write venv:env or wheels:env" in str(caught.value).lower()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nowhere", "no file, folder, stack or tagged image"),
        ("empty", "nothing that can be checked"),
        ("venv:", "names nothing"),
        ("venv:nowhere", "no such file or directory"),
        ("venv:folder", "write wheels:folder"),
        ("oci:folder", "write wheels:folder"),
        ("wheels:empty", "holds no wheels"),
        ("python:env", "write venv:env"),
        ("stack:nothing", "no stack 'nothing'"),
        ("image:Not An Image", "no image reference"),
    ],
)
def test_what_is_not_there_is_one_line(places: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        target.parse(text, {})
    line = str(caught.value)
    assert says in line.lower() or says in line
    assert "\n" not in line


def test_without_a_target_the_active_environment_then_dot_venv_then_the_default_stack(places: Path) -> None:
    (places / "env/lib/python3.12/site-packages/torch-2.11.0.dist-info").mkdir(parents=True)
    assert target.parse(None, {"VIRTUAL_ENV": str(places / "env")}) == TargetSpec("venv", str(places / "env"))
    assert target.parse(None, {}) == TargetSpec("stack", "cu130-sglang-0.5.23")
    (places / ".venv/lib/python3.12/site-packages/sglang").mkdir(parents=True)
    (places / ".venv/pyvenv.cfg").touch()
    assert target.parse(None, {}) == TargetSpec("venv", ".venv")


def test_an_environment_that_serves_nothing_is_no_default(places: Path) -> None:
    """Such as stackb's own, which is active where the README's first steps end."""
    with pytest.raises(UsageError, match=r"neither torch nor SGLang.*stack:cu130-sglang-0\.5\.23 or venv:DIR"):
        target.parse(None, {"VIRTUAL_ENV": str(places / "env")})
    assert target.parse("venv:env").kind == "venv"
    (places / "env/pyvenv.cfg").write_text("include-system-site-packages = true\n")
    assert target.parse(None, {"VIRTUAL_ENV": str(places / "env")}).kind == "venv"


@pytest.mark.parametrize(
    ("text", "meant"), [("wheel:folder", "wheels:folder"), ("stacks:x", "stack:x"), ("docker:a:1", "image:a:1")]
)
def test_a_mistyped_kind_is_no_image(places: Path, text: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean {meant}"):
        target.parse(text)


def test_a_command_offers_the_kinds_that_it_takes(places: Path) -> None:
    for text in ("garbage", "env", "stack:cu130-sglang-0.5.23"):
        with pytest.raises(UsageError) as refused:
            target.parse(text, kinds=("oci", "image"))
        assert str(refused.value.fix) == "write oci:DIR|TAR or image:REF"


def test_a_path_inside_of_an_environment_is_told_the_form_that_fits(tmp_path: Path) -> None:
    conda, venv = tmp_path / "conda", tmp_path / "venv"
    for folder in (conda / "conda-meta", conda / "bin", venv / "lib/python3.11/site-packages"):
        folder.mkdir(parents=True)
    (conda / "bin/python").write_text("")
    (venv / "pyvenv.cfg").write_text("")
    extension, wheel = venv / "lib/python3.11/site-packages/x.so", tmp_path / "w/demo-1-py3-none-any.whl"
    wheel.parent.mkdir()
    for file in (extension, wheel):
        file.write_text("")
    for path, form in (
        (extension, f"venv:{venv}"),
        (extension.parent, f"venv:{venv}"),
        (wheel, f"wheels:{wheel.parent}"),
        (conda, f"python:{conda}/bin/python"),
    ):
        with pytest.raises(UsageError) as raised:
            target.parse(str(path), {})
        assert raised.value.fix == f"write {form}"


def test_without_a_target_the_active_conda_environment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conda/bin").mkdir(parents=True)
    (tmp_path / "conda/bin/python").write_text("")
    found = target.parse(None, {"CONDA_PREFIX": str(tmp_path / "conda")})
    assert (found.kind, found.value) == ("python", f"{tmp_path}/conda/bin/python")
