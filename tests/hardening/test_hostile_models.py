"""Hostile model folders, given to ``stackb doctor --model``: refused, or judged by what can be read."""

from __future__ import annotations

import copy
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hardening.hostile import BOUND, attempt
from tests.hardening.plugin import Recorder
from tests.unit.sglang.conftest import FILES
from tests.unit.sglang.test_pair import DRAFT, TARGET, write

DOCTOR = ["doctor", "venv:venv", "--no-host", "--model", "target", "--draft", "draft", "--format", "json"]
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
METADATA = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n"
Spoil = Callable[[Path], object]


def config(**changed: object) -> Spoil:
    def spoil(folder: Path) -> None:
        found = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**found, **changed}))

    return spoil


def raw(name: str, data: bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(data)


def weights(header: bytes, length: int | None = None) -> Spoil:
    said = struct.pack("<Q", len(header) if length is None else length)
    return raw(WEIGHTS, said + header + bytes(1000))


def entry(**changed: object) -> Spoil:
    return weights(
        json.dumps({"fc.weight": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8], **changed}}).encode()
    )


def index(*names: str) -> Spoil:
    return raw(INDEX, json.dumps({"weight_map": {f"t{number}": name for number, name in enumerate(names)}}).encode())


def shown(line: str) -> str:
    """What a terminal gets of a line."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)


def pipe(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return spoil


def link(name: str, target: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return spoil


MODELS: dict[str, tuple[Spoil, int, str]] = {
    "config: 100,000 brackets": (raw(CONFIG, b"[" * 100_000), 2, "not JSON"),
    "config: NaN": (raw(CONFIG, b'{"hidden_size": NaN}'), 2, "not JSON"),
    "config: a list": (raw(CONFIG, b"[]"), 2, "not a JSON object"),
    "config: not UTF-8": (raw(CONFIG, b'{"\xff": 1}'), 2, "not JSON"),
    "config: five megabytes": (raw(CONFIG, b" " * (5 << 20)), 2, "larger than"),
    "config: a size of 4,000 digits": (config(hidden_size=10**4000), 2, "not JSON"),
    "config: sizes that are words": (config(hidden_size="many", num_attention_heads=[], vocab_size={}), 1, "made for None"),
    "config: sizes of 0": (config(hidden_size=0, num_attention_heads=0, num_key_value_heads=0, vocab_size=0), 1, "made for 0"),
    "config: sizes below 0": (config(hidden_size=-64, num_hidden_layers=-1, draft_vocab_size=-1), 1, "made for -64"),
    "config: sizes of 2**62": (config(hidden_size=1 << 62, vocab_size=1 << 62, num_hidden_layers=1 << 62), 1, "no layers.1."),
    "config: terminal commands": (config(architectures=["\x1b[2J\x1b]0;owned\x07"]), 1, "registers none such"),
    "config: a named pipe": (pipe(CONFIG), 2, "no config.json"),
    "config: a link to /dev/zero": (link(CONFIG, "/dev/zero"), 2, "no config.json"),
    "weights: a header of 2**62 bytes": (weights(b"{}", 1 << 62), 1, "said to have 4611686018427387904"),
    "weights: 100,000 brackets": (weights(b"[" * 100_000), 1, "not JSON"),
    "weights: a header of 17 MB": (weights(b" " * (17 << 20)), 1, "with a header said to have"),
    "weights: a header of 300,000 lists": (weights(b'{"a":[' + b"[]," * 300_000 + b"0]}"), 1, "in no way known"),
    "weights: a shape of 10,000 numbers": (entry(shape=[2] * 10_000), 1, "in no way known"),
    "weights: a shape of 4,000 digits": (entry(shape=[10**4000]), 1, "not JSON"),
    "weights: offsets beyond the file": (entry(data_offsets=[0, 1 << 60]), 1, "the file at"),
    "weights: offsets that go back": (entry(data_offsets=[8, 0]), 1, "the file at"),
    "weights: a type nobody knows": (entry(dtype="\x1b[2J"), 1, "fc.weight has shape [2, 2]"),
    "weights: truncated": (raw(WEIGHTS, b"\x08\0\0"), 1, "3 bytes"),
    "weights: a named pipe": (pipe(WEIGHTS), 1, "missing"),
    "weights: a link to /dev/zero": (link(WEIGHTS, "/dev/zero"), 1, "missing"),
    "index: a file outside the folder": (index("../../etc/passwd"), 1, "outside the folder"),
    "index: an absolute path": (index("/etc/passwd"), 1, "outside the folder"),
    "index: a file that is not there": (index("model-00001-of-00002.safetensors"), 1, "missing"),
    "index: 10,000 files": (index(*(f"{number}.safetensors" for number in range(10_000))), 1, "more than 4096"),
    "index: no map": (raw(INDEX, b'{"weight_map": 7}'), 1, "no weight_map"),
    "index: itself": (index(INDEX), 1, "said to have"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_hostile_model(name: str, tmp_path: Path, hardened: Recorder) -> None:
    spoil, code, reason = MODELS[name]
    write(tmp_path / "target", copy.deepcopy(TARGET))
    write(tmp_path / "draft", copy.deepcopy(DRAFT))
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for path, text in {**FILES, "sglang-0.5.9.dist-info/METADATA": METADATA}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    spoil(tmp_path / "draft")
    done = attempt(DOCTOR, tmp_path)
    assert done.code == code, done
    said = [*(finding["detail"] for finding in json.loads(done.out)["findings"])] if code == 1 else [done.line]
    assert any(reason in line for line in said), said
    hardened("models", name, code=code, shown=shown(done.line or said[0]), bound=BOUND)
