"""The provenance against the required fields of in-toto's and SLSA's specifications, and the papers as files."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from stack_builder.stack.lock import Lock
from stack_builder.stack.receipt import Receipt
from stack_builder.stack.spec import StackSpec
from stack_builder.supply import provenance
from stack_builder.supply.beside import write_beside

_DIGEST = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {"sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}},
}
# in-toto/attestation spec/v1: a descriptor has at least one of uri, digest, content
_DESCRIPTOR = {
    "type": "object",
    "anyOf": [{"required": ["uri"]}, {"required": ["digest"]}, {"required": ["content"]}],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "uri": {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*:"},
        "digest": _DIGEST,
    },
}
# in-toto/attestation spec/v1/statement.md and slsa.dev provenance/v1: what they call required
STATEMENT = {
    "type": "object",
    "required": ["_type", "subject", "predicateType", "predicate"],
    "additionalProperties": False,
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "subject": {
            "type": "array",
            "minItems": 1,
            "items": {**_DESCRIPTOR, "required": ["digest"]},
        },
        "predicateType": {"const": "https://slsa.dev/provenance/v1"},
        "predicate": {
            "type": "object",
            "required": ["buildDefinition", "runDetails"],
            "properties": {
                "buildDefinition": {
                    "type": "object",
                    "required": ["buildType", "externalParameters"],
                    "additionalProperties": False,
                    "properties": {
                        "buildType": {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*:"},
                        "externalParameters": {"type": "object"},
                        "internalParameters": {"type": "object"},
                        "resolvedDependencies": {"type": "array", "items": _DESCRIPTOR},
                    },
                },
                "runDetails": {
                    "type": "object",
                    "required": ["builder"],
                    "additionalProperties": False,
                    "properties": {
                        "builder": {
                            "type": "object",
                            "required": ["id"],
                            "properties": {"id": {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*:"}},
                        },
                        "metadata": {"type": "object"},
                        "byproducts": {"type": "array", "items": _DESCRIPTOR},
                    },
                },
            },
        },
    },
}


def test_the_statement_has_the_form_of_the_specifications(receipt: Receipt) -> None:
    jsonschema.validate(json.loads(provenance.render(receipt)), STATEMENT)


def test_the_subject_is_the_image_and_everything_that_went_in_is_named(receipt: Receipt) -> None:
    statement = json.loads(provenance.render(receipt))
    assert statement["subject"][0]["digest"] == {"sha256": "f" * 64}
    inputs = {each["digest"]["sha256"] for each in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert inputs == {"1" * 64, "2" * 64, "5" * 64, "c" * 64, receipt.wheels[1].sha256}


def test_papers_are_the_same_each_time_and_tell_nothing_of_the_machine(
    receipt: Receipt, lock: Lock, spec: StackSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"USER": "marker-user", "HOSTNAME": "marker-host", "API_TOKEN": "marker-token", "HOME": "/marker-home"}
    first = write_beside(receipt, lock, spec, tmp_path / "one")
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    second = write_beside(receipt, lock, spec, tmp_path / "two", prefix="image.tar.")
    assert second.sbom.name == "image.tar.stackb-sbom.cdx.json"
    for one, two in ((first.sbom, second.sbom), (first.provenance, second.provenance)):
        assert one.read_bytes() == two.read_bytes()
        assert b"marker" not in two.read_bytes()
        assert str(tmp_path).encode() not in two.read_bytes()
    assert first.unread == 2
