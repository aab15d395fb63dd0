"""Names, types and shapes of the tensors in a checkpoint, from file headers alone.

Format: eight bytes, little-endian, with the length of a JSON object that maps each tensor to ``dtype``, ``shape`` and
``data_offsets`` into the rest of the file (the format description in the safetensors repository).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack_builder import jsontext
from stack_builder.errors import IntegrityError
from stack_builder.wheels.paths import unsafe

MAX_HEADER = 16 << 20  # bytes, which may take twenty times the memory; 100,000 tensors have 12 MB
MAX_INDEX = 24 << 20
MAX_SHARDS = 4096
MAX_DIMENSIONS = 64  # of a tensor; the product of millions would take minutes
INDEX = "model.safetensors.index.json"

_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}
_BITS |= {"I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
_BITS |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "C64": 64}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor, without its numbers.

    Attributes:
        dtype: as the format names it: ``BF16``, ``I64`` …
        shape: in elements.
        file: that holds it.
        start: offset of its first byte in the file.
        end: offset after its last byte.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


class DamagedCheckpointError(IntegrityError):
    """A weight file is missing, truncated or contradicts itself."""


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model folder: those that the index lists, else every ``*.safetensors``.

    Raises:
        DamagedCheckpointError: no weights, a file that the index names is missing, a header that is not one.
    """
    index = folder / INDEX
    shards = _indexed(index) if index.is_file() else sorted(folder.glob("*.safetensors"))
    if not shards:
        raise DamagedCheckpointError("holds no *.safetensors", where=folder, fix="download the checkpoint again")
    if len(shards) > MAX_SHARDS:
        raise DamagedCheckpointError(f"more than {MAX_SHARDS} weight files", where=folder)
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if not shard.is_file():
            raise DamagedCheckpointError("the index names it, but it is missing", where=shard, fix="download it again")
        tensors.update(read_header(shard))
    return tensors


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of one file.

    Raises:
        DamagedCheckpointError: the header is no header, or describes more than the file holds.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
            raise _damaged(path, f"{size} bytes, with a header said to have {length}")
        try:
            header = jsontext.loads(file.read(length))
        except ValueError as error:
            raise _damaged(path, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not an object")
    header.pop("__metadata__", None)
    return {name: _tensor(path, 8 + length, size, name, entry) for name, entry in header.items()}


def _tensor(path: Path, base: int, size: int, name: str, entry: object) -> Tensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if (
            all(isinstance(n, int) and n >= 0 for n in shape) and len(shape) <= MAX_DIMENSIONS
        ):
            pass
        case _:
            raise _damaged(path, f"its header describes '{name}' in no way known")
    if not 0 <= start <= end <= size - base:
        raise _damaged(path, f"'{name}' ends at byte {base + end}, the file at {size}")
    bits = _BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits != (end - start) * 8:
        raise _damaged(path, f"'{name}' of shape {shape} and type {dtype} does not have {end - start} bytes")
    return Tensor(dtype, tuple(shape), path, base + start, base + end)


def _indexed(index: Path) -> list[Path]:
    if index.stat().st_size > MAX_INDEX:
        raise _damaged(index, f"larger than {MAX_INDEX} bytes")
    try:
        body = jsontext.loads(index.read_bytes())
    except ValueError as error:
        raise _damaged(index, "not JSON") from error
    weights = body.get("weight_map") if isinstance(body, Mapping) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise _damaged(index, "has no weight_map")
    names = sorted(set(weights.values()))
    if any("/" in name or unsafe(name) or name.startswith(".") for name in names):
        raise _damaged(index, "names a file outside the folder")
    return [index.parent / name for name in names]


def _damaged(path: Path, what: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(what, where=path, fix="download the checkpoint again")
