"""Weight headers: what an honest file says, and what is made of dishonest ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from stack_builder.sglang import safetensors
from stack_builder.sglang.safetensors import DamagedCheckpointError


def pack(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_an_honest_file(tmp_path):
    header = {"__metadata__": {"format": "pt"}, "a": entry("BF16", [2, 3], 0, 12), "b": entry("I64", [2], 12, 28)}
    path = tmp_path / "m.safetensors"
    path.write_bytes(pack(header, bytes(28)))
    tensors = safetensors.read_header(path)
    assert {name: (t.dtype, t.shape) for name, t in tensors.items()} == {"a": ("BF16", (2, 3)), "b": ("I64", (2,))}
    assert tensors["b"].end == path.stat().st_size


GOOD = {"a": entry("F32", [1], 0, 4)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"\x08\0\0", "3 bytes"),
        (pack(GOOD, bytes(4))[:-10], "is not JSON|with a header"),
        (pack(GOOD, bytes(3)), "ends at byte"),
        (pack(b"{", bytes(4)), "with a header said"),
        (pack(b"{{", bytes(4)), "is not JSON"),
        (pack(b"[" * 100_000, bytes(4)), "is not JSON"),
        (pack(b"[1]", bytes(4)), "is not an object"),
        (pack(GOOD, length=1 << 62), "header said to have 4611686018427387904"),
        (pack({"a": 3}), "describes 'a' in no way known"),
        (pack({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "describes 'a'"),
        (pack({"a": entry("F32", [2], 0, 4)}, bytes(4)), "does not have 4 bytes"),
        (pack({"a": entry("F32", [1], 4, 0)}, bytes(4)), "ends at byte"),
        (pack({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)), "describes 'a'"),
    ],
)
def test_dishonest_files(tmp_path, content, message):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=message) as caught:
        safetensors.read_header(path)
    assert str(caught.value).startswith(str(path))


def write_index(folder: Path, body: object) -> None:
    (folder / safetensors.INDEX).write_text(body if isinstance(body, str) else json.dumps(body))


def test_an_index_names_the_files(tmp_path):
    for number in (1, 2):
        name = f"t{number}"
        (tmp_path / f"m{number}.safetensors").write_bytes(pack({name: entry("U8", [1], 0, 1)}, b"x"))
    write_index(tmp_path, {"weight_map": {"t1": "m1.safetensors"}})
    assert set(safetensors.read(tmp_path)) == {"t1"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"weight_map": {"t": "absent.safetensors"}}, "is missing"),
        ({"weight_map": {"t": "../escape.safetensors"}}, "outside the folder"),
        ({"weight_map": [1]}, "has no weight_map"),
        ("{", "not JSON"),
        ("[]", "has no weight_map"),
    ],
)
def test_a_dishonest_index(tmp_path, body, message):
    write_index(tmp_path, body)
    with pytest.raises(DamagedCheckpointError, match=message):
        safetensors.read(tmp_path)


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(DamagedCheckpointError, match=r"holds no \*\.safetensors"):
        safetensors.read(tmp_path)
