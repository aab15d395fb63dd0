"""What wheels say of themselves; whatever stands in ``sboms/`` must do no harm."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from stack_builder.supply.statements import Statement, read, read_document
from stack_builder.wheels.archive import WheelArchive

from .conftest import make_wheel


def _read(path: Path) -> Statement:
    with path.open("rb") as file:
        return read(WheelArchive(file, path.name))


@pytest.mark.parametrize(
    ("metadata", "expression", "licence", "classifiers"),
    [
        ("License-Expression: MIT\n", "MIT", None, ()),
        ("License: Apache 2.0\n", None, "Apache 2.0", ()),
        ("License: UNKNOWN\n", None, None, ()),
        (f"License: {'Permission is hereby granted ' * 20}\n", None, None, ()),
        ("Classifier: License :: OSI Approved :: BSD License\n", None, None, ("OSI Approved :: BSD License",)),
        ("Classifier: Topic :: Software Development\n", None, None, ()),
    ],
)
def test_licences(
    tmp_path: Path, metadata: str, expression: str | None, licence: str | None, classifiers: tuple[str, ...]
) -> None:
    found = _read(make_wheel(tmp_path, {}, metadata))
    assert (found.expression, found.licence, found.classifiers) == (expression, licence, classifiers)


def _flood() -> bytes:
    part = {"type": "library", "name": "part", "version": "1"}
    return json.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "components": [{**part, "name": f"p{n}"} for n in range(20_002)],
        }
    ).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="not text"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"a":' * 100_000, id="deep objects"),
        pytest.param(b'{"bomFormat": "CycloneDX", "specVersion": "1.5", "components": 7}', id="other types"),
        pytest.param(b'{"spdxVersion": "SPDX-2.3", "packages": []}', id="SPDX"),
        pytest.param(_flood(), id="too many parts"),
    ],
)
def test_a_document_that_cannot_be_read_is_kept_by_its_hash(data: bytes) -> None:
    document = read_document("x.dist-info/sboms/x.json", data, ("x", "1"))
    assert (document.form, document.parts) == (None, ())
    assert document.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", ["\x1b[31mred", "a" * 400, ""])
def test_names_that_no_package_has_are_left_out(name: str) -> None:
    data = json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.5", "components": [{"name": name}, {"name": "good"}]}
    )
    assert [part.name for part in read_document("p", data.encode(), ("x", "1")).parts] == ["good"]


def test_a_malformed_purl_or_hash_is_dropped_and_the_rest_kept() -> None:
    component = {"name": "a", "purl": "no purl", "hashes": [{"alg": "SHA-256", "content": "../../x"}]}
    data = json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.7", "components": [component]})
    (part,) = read_document("p", data.encode(), ("x", "1")).parts
    assert (part.name, part.purl, part.sha256) == ("a", None, None)
