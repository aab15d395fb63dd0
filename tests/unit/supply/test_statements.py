"""What wheels say of themselves; whatever stands in ``sboms/`` must do no harm."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack_builder.stack import spec as specs
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.stack.receipt import BaseRecord
from stack_builder.supply import sbom
from stack_builder.supply.statements import Document, Statement, read, read_document
from stack_builder.wheels.archive import WheelArchive

from .conftest import STACK, make_wheel

SPEC = specs.parse(STACK, "stack.toml")


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


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_COMPONENT = st.fixed_dictionaries(
    {"name": st.text(max_size=40)},
    optional={
        "version": st.text(max_size=40),
        "purl": st.from_regex(r"pkg:[a-z]{1,5}/[ -~]{1,40}", fullmatch=True) | st.text(max_size=40),
        "licenses": st.lists(st.fixed_dictionaries({"expression": st.text("MIT ()ORANDWITH-01", max_size=30)})),
        "hashes": st.just([{"alg": "SHA-256", "content": "AB" * 32}]),
    },
)


@given(st.lists(_COMPONENT, min_size=1, max_size=4))
def test_whatever_was_read_of_a_document_can_be_written(components: list[object]) -> None:
    body = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": components}
    document = read_document("x.dist-info/sboms/x.json", json.dumps(body).encode(), ("x", "1"))
    assert document.form == "CycloneDX 1.6"
    json.loads(render_parts(document))


@given(_JSON, _JSON)
def test_any_json_is_a_document_or_none(components: object, metadata: object) -> None:
    body = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": components, "metadata": metadata}
    assert read_document("p", json.dumps(body).encode(), ("x", "1")).form in (None, "CycloneDX 1.6")


def render_parts(document: Document) -> str:
    """Write a bill with the parts of a document in it: whatever was read must be fit to be written."""
    parts = Statement(documents=(document,))
    lock = Lock("s", "3.11", "linux_x86_64", "uv", artifacts=(Artifact("x", "1", "x-1-py3-none-any.whl", "a" * 64),))
    base = BaseRecord("oci:base", "sha256:" + "b" * 64)
    return sbom.render(sbom.Bill(SPEC, lock, base, {"x": parts}))
