from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from stack_builder.files import claimed_file
from stack_builder.image.store import BlobStore, LayerMemory
from stack_builder.image.stream import Written

DATA = b"a layer"
DIGEST = hashlib.sha256(DATA).hexdigest()


def produce(sink: BinaryIO) -> Written:
    sink.write(DATA)
    return Written(DIGEST, "0" * 64, len(DATA))


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_blob_lies_under_its_digest_and_cannot_be_written_to(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.write(produce)
    assert files(tmp_path) == [f"blobs/sha256/{DIGEST}"]
    assert (tmp_path / "blobs/sha256" / DIGEST).stat().st_mode & 0o777 == 0o444
    assert store.intact(f"sha256:{DIGEST}")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_nothing(stop: BaseException, tmp_path: Path) -> None:
    def interrupted(sink: BinaryIO) -> Written:
        sink.write(b"half")
        raise stop

    with pytest.raises(type(stop) if isinstance(stop, OSError) else KeyboardInterrupt):
        BlobStore(tmp_path).write(interrupted)
    assert files(tmp_path) == []


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from stack_builder.image.store import BlobStore\n"
        "def produce(sink):\n    sink.write(b'half'); sink.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "BlobStore(Path(sys.argv[1])).write(produce)"
    )
    killed = subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert killed.returncode == -9
    with claimed_file(tmp_path / "partial") as (mine, _):
        assert len(files(tmp_path)) == 2
        BlobStore(tmp_path).sweep()
        assert files(tmp_path) == [f"partial/{mine.name}"]
    assert files(tmp_path) == []


@pytest.fixture
def memory(tmp_path: Path) -> LayerMemory:
    store = BlobStore(tmp_path / "oci")
    store.write(produce)
    made = LayerMemory(tmp_path / "layers", store)
    made.put("key", Written(DIGEST, "0" * 64, len(DATA)))
    return made


def test_a_layer_is_remembered(memory: LayerMemory) -> None:
    assert memory.get("key") == Written(DIGEST, "0" * 64, len(DATA))
    assert memory.get("other") is None


def test_a_layer_with_a_flipped_byte_is_forgotten_and_removed(memory: LayerMemory, tmp_path: Path) -> None:
    blob = tmp_path / "oci/blobs/sha256" / DIGEST
    blob.chmod(0o644)
    blob.write_bytes(b"A layer")
    assert memory.get("key") is None
    assert not blob.exists()


def test_a_layer_that_was_only_touched_is_kept(memory: LayerMemory, tmp_path: Path) -> None:
    os.utime(tmp_path / "oci/blobs/sha256" / DIGEST, (1, 1))
    assert memory.get("key") is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"stamp": [1, 2]}'])
def test_a_damaged_memory_is_no_memory(text: str, memory: LayerMemory, tmp_path: Path) -> None:
    (tmp_path / "layers" / "key.json").write_text(text)
    assert memory.get("key") is None
