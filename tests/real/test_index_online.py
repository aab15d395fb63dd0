"""The real index: METADATA of a half-gigabyte wheel for a megabyte, by range."""

from __future__ import annotations

import hashlib

import pytest

from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import DEFAULT, indexes_of
from stack_builder.wheels.remote import RemoteFile

TORCH = "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl"
# Of the file that pip downloads: sha256sum, and `unzip -p … torch-2.11.0.dist-info/METADATA | sha256sum`.
TORCH_SHA256 = "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a"
METADATA_SHA256 = "d65e0ab5a65ced0dce799a2f6f32bff57b3d3e9d050069f607ef71eb24dd9976"


@pytest.mark.online
def test_metadata_of_torch_by_range() -> None:
    with Http() as http:
        index = indexes_of(None, http)[DEFAULT]
        (file,) = index.find("torch", TORCH)
        assert file.sha256 == TORCH_SHA256
        with index.open(file) as remote:
            assert isinstance(remote, RemoteFile)
            archive = WheelArchive(remote, TORCH)
            entry = archive.find("torch-2.11.0.dist-info/METADATA")
            assert entry is not None
            metadata = archive.read(entry, 1 << 20)
            assert remote.size == 530_604_548
            assert remote.requests <= 4
            assert remote.received < 3_000_000
    assert hashlib.sha256(metadata).hexdigest() == METADATA_SHA256
    assert file.metadata_sha256 in (None, "", METADATA_SHA256)  # not every mirror offers it
