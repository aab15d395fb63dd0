"""Names of images, credentials, and folders that are no layouts."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError, MachineError, UsageError
from stack_builder.registry.credentials import find
from stack_builder.registry.layout import Layout
from stack_builder.registry.reference import parse

_DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "host", "name", "manifest"),
    [
        ("localhost/a", "localhost", "a", "latest"),
        ("127.0.0.1:5000/team/image:v1", "127.0.0.1:5000", "team/image", "v1"),
        ("[::1]:5000/a:v1", "[::1]:5000", "a", "v1"),
        (f"host.example/a/b__c/d-e@{_DIGEST}", "host.example", "a/b__c/d-e", _DIGEST),
        (f"host.example/a:v1@{_DIGEST}", "host.example", "a", _DIGEST),
    ],
)
def test_names(text: str, host: str, name: str, manifest: str) -> None:
    reference = parse(text)
    assert (reference.host, reference.name, reference.manifest) == (host, name, manifest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "image",
        "team/image:v1",
        "host.example/",
        "host.example/UPPER",
        "host.example/a/../b",
        "host.example/a:",
        "host.example/a@sha256:short",
        "https://host.example/a",
        "user:pw@host.example/a",
        "host.example/a b",
        "host.example/" + "a" * 2000,
    ],
)
def test_names_of_nothing_in_a_registry(text: str) -> None:
    with pytest.raises(UsageError, match="names no image"):
        parse(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost:5000", True),
        ("127.8.8.8", True),
        ("[::1]:5000", True),
        ("127.0.0.1.example:80", False),
        ("10.0.0.1:5000", False),
        ("localhost.example", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert parse(f"{host}/a").loopback is loopback


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def test_no_config_is_no_account(config: Path) -> None:
    assert find("host.example") is None


@pytest.mark.parametrize("key", ["host.example", "https://host.example"])
def test_an_account_of_docker_login(config: Path, key: str) -> None:
    config.write_text(json.dumps({"auths": {key: {"auth": base64.b64encode(b"me:pass:word").decode()}}}))
    found = find("host.example")
    assert found is not None
    assert (found.user, found.secret) == ("me", "pass:word")
    assert "pass:word" not in repr(found)
    assert find("other.example") is None


def test_a_credential_helper(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\nread host\necho "{\\"Username\\": \\"$host\\", \\"Secret\\": \\"s\\"}"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config.write_text(json.dumps({"credHelpers": {"host.example": "test"}}))
    found = find("host.example")
    assert found is not None
    assert (found.user, found.secret) == ("host.example", "s")


def test_a_credential_helper_that_answers_with_brackets(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = tmp_path / "docker-credential-test"
    helper.write_text("#!/bin/sh\nread host\nhead -c 100000 /dev/zero | tr '\\0' '['\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    config.write_text(json.dumps({"credHelpers": {"host.example": "test"}}))
    with pytest.raises(MachineError, match="does not work"):
        find("host.example")


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("{", UsageError, "is not JSON"),
        ('{"auths": {"h.example": {"auth": "%%"}}}', UsageError, "no user and password"),
        ('{"credsStore": "../../bin/sh"}', UsageError, "credential helper"),
        ('{"credsStore": "not-installed-here"}', MachineError, "does not work"),
        ('{"auths": {"h.example": {"identitytoken": "secret"}}}', MachineError, "identity token"),
    ],
)
def test_configs_that_cannot_be_used(config: Path, text: str, error: type[Exception], says: str) -> None:
    config.write_text(text)
    with pytest.raises(error, match=says) as refused:
        find("h.example")
    assert "secret" not in str(refused.value)


def test_a_folder_that_is_no_layout(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no index\.json"):
        Layout.open(tmp_path)
    with pytest.raises(UsageError, match="no such image"):
        Layout.open(tmp_path / "absent")


def test_a_file_that_is_no_tar(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(UsageError, match="no tar"):
        Layout.open(tmp_path / "x.tar")


def test_links_in_a_tar_are_no_files_of_a_layout(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        link = tarfile.TarInfo("index.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(UsageError, match=r"no index\.json"):
        Layout.open(tmp_path / "x.tar")


@pytest.mark.parametrize("text", ["[]", "{}", "{", '{"manifests": 1}', "[" * 100_000, '{"a":' * 100_000])
def test_a_malformed_index(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(IntegrityError):
        Layout.open(tmp_path).manifest()
