"""The bill of materials, judged by the validator of the CycloneDX library, and what it says, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from stack_builder import resources
from stack_builder.cli.app import run
from stack_builder.stack.lock import Lock
from stack_builder.stack.receipt import BaseRecord
from stack_builder.stack.spec import StackSpec
from stack_builder.supply import sbom, statements
from stack_builder.wheels.store import Store

_VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)  # keeps the schema once it is loaded


def _assert_valid(text: str) -> None:
    assert _VALIDATOR.validate_str(text) is None


def _bill(spec: StackSpec, lock: Lock, base: BaseRecord, wheel: Path) -> sbom.Bill:
    store = Store()
    outer = lock.artifacts[1]
    assert outer.sha256 is not None
    store.add_file(wheel, outer.sha256, outer.filename)
    return sbom.Bill(spec, lock, base, statements.collect(lock.artifacts, store))


@pytest.fixture
def text(spec: StackSpec, lock: Lock, base: BaseRecord, wheel: Path) -> str:
    return sbom.render(_bill(spec, lock, base, wheel))


@pytest.fixture
def bom(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def _component(bom: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in bom["components"] if each["name"] == name)


def test_it_satisfies_the_schema_of_cyclonedx_1_6(text: str) -> None:
    _assert_valid(text)


def test_equal_inputs_give_equal_bytes_without_a_clock(
    text: str, spec: StackSpec, lock: Lock, base: BaseRecord, wheel: Path
) -> None:
    assert sbom.render(_bill(spec, lock, base, wheel)) == text
    assert "timestamp" not in text


def test_other_content_gets_another_serial_number(
    bom: dict[str, Any], spec: StackSpec, lock: Lock, base: BaseRecord
) -> None:
    unread = json.loads(sbom.render(sbom.Bill(spec, lock, base, {})))
    assert unread["serialNumber"] != bom["serialNumber"]


def test_wheels_have_purl_and_hash(bom: dict[str, Any]) -> None:
    inner = _component(bom, "inner")
    assert inner["purl"] == "pkg:pypi/inner@2.0%2Bcu130"
    assert inner["hashes"] == [{"alg": "SHA-256", "content": "c" * 64}]


def test_debian_packages_have_the_purl_that_scanners_match(bom: dict[str, Any]) -> None:
    assert _component(bom, "libc6")["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12"


def test_a_licence_expression_is_passed_on_as_one(bom: dict[str, Any]) -> None:
    assert _component(bom, "outer")["licenses"] == [{"acknowledgement": "declared", "expression": "MIT OR Apache-2.0"}]


def test_a_wheel_that_is_not_at_hand_is_marked(bom: dict[str, Any]) -> None:
    def unread(name: str) -> bool:
        return any(each["name"] == "stackb:unread" for each in _component(bom, name)["properties"])

    assert unread("inner")
    assert not unread("outer")


def test_what_a_wheel_was_compiled_from_stands_inside_it(bom: dict[str, Any]) -> None:
    parts = {each["name"]: each for each in _component(bom, "outer")["components"]}
    assert set(parts) == {"outer-rust", "serde"}
    assert parts["serde"]["purl"] == "pkg:cargo/serde@1.0.228"
    assert parts["serde"]["hashes"][0]["content"].startswith("9a8e94ea")


def test_paths_of_the_machine_that_built_a_wheel_stay_behind(text: str) -> None:
    assert "/home/" not in text
    assert "file:" not in text


def test_who_requires_whom(bom: dict[str, Any]) -> None:
    edges = {each["ref"]: set(each.get("dependsOn", ())) for each in bom["dependencies"]}
    assert edges["pkg:pypi/outer@1.0"] == {"pkg:pypi/inner@2.0%2Bcu130"}
    assert "pkg:pypi/outer@1.0" in edges["stack:small-1.0"]
    assert "pkg:pypi/inner@2.0%2Bcu130" not in edges["stack:small-1.0"]


def test_a_base_image_is_named_by_digest(spec: StackSpec, lock: Lock) -> None:
    digest = "sha256:" + "7" * 64
    text = sbom.render(sbom.Bill(spec, lock, BaseRecord(f"registry:host.example/base@{digest}", digest), {}))
    _assert_valid(text)
    base = _component(json.loads(text), "registry:host.example/base")
    assert (base["type"], base["version"]) == ("container", digest)


@pytest.mark.parametrize("stack", ["cu130-sglang-0.5.23", "cu130-sglang-0.5.9"])
def test_the_command_prints_a_valid_bill_of_each_stack(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sbom", stack]) == 0
    said = capsys.readouterr()
    _assert_valid(said.out)
    locked = json.loads((resources.lockfiles() / stack / "artifacts.json").read_text())["artifacts"]
    purls = {each["purl"] for each in json.loads(said.out)["components"] if "pkg:pypi/" in each.get("purl", "")}
    assert len(purls) == len(locked)
    assert f"{len(locked)} of {len(locked)} wheels are not in the store" in said.err


def test_the_table_of_licences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sbom", "--format", "licences"]) == 0
    assert "torch\t2.14.1\t(wheel not read)" in capsys.readouterr().out.splitlines()
