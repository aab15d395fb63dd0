"""Manifests: whatever a registry or a disk holds is a manifest, an index, or refused in one line."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from stack_builder.errors import IntegrityError
from stack_builder.registry.manifest import Manifest, parse

_DIGEST = "sha256:" + "a" * 64
_ANY = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_DESCRIPTOR = st.fixed_dictionaries(
    {"digest": st.just(_DIGEST) | _ANY, "size": st.integers(-1, 1 << 70) | _ANY},
    optional={"mediaType": _ANY, "platform": _ANY},
)
_BODY = st.fixed_dictionaries(
    {},
    optional={
        "mediaType": st.just("application/vnd.oci.image.manifest.v1+json") | _ANY,
        "config": _DESCRIPTOR | _ANY,
        "layers": st.lists(_DESCRIPTOR, max_size=3) | _ANY,
        "manifests": st.lists(_DESCRIPTOR, max_size=3) | _ANY,
    },
)


@given(_BODY | _ANY)
def test_any_json(body: object) -> None:
    with suppress(IntegrityError):
        found = parse(json.dumps(body).encode(), "registry.example/a")
        blobs = found.blobs if isinstance(found, Manifest) else found
        assert all(blob.digest == _DIGEST and 0 <= blob.size <= 1 << 40 for blob in blobs)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with suppress(IntegrityError):
        parse(data, "registry.example/a")
