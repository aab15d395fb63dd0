from __future__ import annotations

import gzip
import hashlib
import io
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack_builder.errors import IntegrityError
from stack_builder.image.stream import LayerStream, Promise, Written, stored_member


def deflate(data: bytes, level: int = 6) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


def promise(data: bytes) -> Promise:
    return Promise(len(data), zlib.crc32(data), "demo.whl: file")


def write(*parts: tuple[bool, bytes]) -> tuple[bytes, Written]:
    sink = io.BytesIO()
    stream = LayerStream(sink)
    for compressed, data in parts:
        if compressed:
            raw = deflate(data)
            stream.deflated([raw[n : n + 7] for n in range(0, len(raw), 7)], promise(data), hashlib.sha256())
        else:
            stream.plain(data)
    written = stream.finish()
    return sink.getvalue(), written


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=3000)), max_size=12))
def test_gzip_reads_back_what_was_written_and_both_digests_are_those_of_the_bytes(
    parts: list[tuple[bool, bytes]],
) -> None:
    blob, written = write(*parts)
    plain = b"".join(data for _, data in parts)
    assert (gzip.decompress(blob) if blob else b"") == plain
    assert written == Written(hashlib.sha256(blob).hexdigest(), hashlib.sha256(plain).hexdigest(), len(blob))


def test_the_deflate_stream_is_copied_and_not_made_anew() -> None:
    data = b"spam and eggs " * 10_000
    for level in (1, 9):
        sink = io.BytesIO()
        LayerStream(sink).deflated([deflate(data, level)], promise(data), hashlib.sha256())
        assert deflate(data, level) in sink.getvalue()


def test_content_is_hashed_decompressed() -> None:
    data, content = bytes(range(256)) * 40_000, hashlib.sha256()
    LayerStream(io.BytesIO()).deflated([deflate(data)], promise(data), content)
    assert content.hexdigest() == hashlib.sha256(data).hexdigest()


def test_a_stream_that_expands_a_thousandfold_is_read_in_pieces() -> None:
    data = bytes(20 << 20)
    blob, written = write((True, data), (False, b"end"))
    assert written.diff_id == hashlib.sha256(data + b"end").hexdigest()
    assert len(blob) < 30_000


@pytest.mark.parametrize("size", [0, 1, 65_534, 65_535, 65_536, 200_000])
def test_stored_member(size: int) -> None:
    data = (b"0123456789" * 20_001)[:size]
    assert gzip.decompress(stored_member(data)) == data


DATA = b"the quick brown fox " * 500


@pytest.mark.parametrize(
    ("raw", "said", "message"),
    [
        (deflate(DATA)[:-3], promise(DATA), "does not end where it should"),
        (deflate(DATA) + b"more", promise(DATA), "does not end where it should"),
        (b"\xff" * 40, promise(DATA), "corrupt deflate stream"),
        (deflate(DATA), Promise(len(DATA) - 1, zlib.crc32(DATA), "demo.whl: file"), "larger than the wheel says"),
        (deflate(DATA), Promise(len(DATA) + 1, zlib.crc32(DATA), "demo.whl: file"), "not what the wheel says"),
        (deflate(DATA), Promise(len(DATA), 1, "demo.whl: file"), "not what the wheel says"),
    ],
    ids=["truncated", "trailing", "garbage", "longer", "shorter", "crc"],
)
def test_a_stream_that_is_not_what_was_promised_is_refused(raw: bytes, said: Promise, message: str) -> None:
    with pytest.raises(IntegrityError, match=message) as caught:
        LayerStream(io.BytesIO()).deflated([raw], said, hashlib.sha256())
    assert "demo.whl: file" in str(caught.value)
