"""The replica's SGLang 0.5.9 with its series, as the image has it: on a Python 3.12, in layers of its own.

The replica cannot be built whole where its indexes are not reached; this takes its SGLang alone, by its lock and from
the default index, and its ``[patches]``. Opt-in, since it compiles all of SGLang twice:

    STACKB_TEST_PYTHON312=/path/to/python3.12 pytest tests/real/test_replica_image.py

The base is made from that interpreter and from what ``ldd`` says it needs; it stands at /usr as in the replica's base.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stack_builder.cli.app import run
from stack_builder.image import daemon, output
from stack_builder.image.build import Built, build
from stack_builder.image.subject import Subject
from stack_builder.image.wheel_layers import Options
from stack_builder.image.workspace import Workspace
from stack_builder.patchset import model
from stack_builder.progress import Silent
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.wheels.fetch import Network, fetch
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import indexes_of
from stack_builder.wheels.store import Store
from tests.unit.trees.oci_images import Row, layer_tar, write_layout

INTERPRETER = os.environ.get("STACKB_TEST_PYTHON312")
pytestmark = [
    pytest.mark.online,
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.skipif(INTERPRETER is None, reason="STACKB_TEST_PYTHON312 names no Python 3.12"),
]

STACK = "cu130-sglang-0.5.9"
SERIES = ["symm-mem-sm12", "kimi-k25-eagle3", "eagle3-graph-layers"]
SITE = "/opt/venv/lib/python3.12/site-packages"
MIB = 1 << 20

TABLES = """
import importlib, json, sys, types
from unittest.mock import MagicMock
from pathlib import Path

for name in ("sglang", "sglang.srt", "sglang.srt.distributed"):  # packages whose __init__ would import the world
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(Path(SITE, *name.split(".")))]
for name in ("torch", "torch.distributed", "torch.distributed._symmetric_memory", "sglang.srt.utils"):
    sys.modules[name] = MagicMock()
folder = "sglang.srt.distributed.device_communicators"
sizes = importlib.import_module(folder + ".all_reduce_utils")
worlds = importlib.import_module(folder + ".torch_symm_mem")
print(json.dumps({
    "sizes": sizes.TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES,
    "worlds": worlds.TorchSymmMemCommunicator._WORLD_SIZES_MULTIMEM,
    "compiled": [Path(module.__cached__).is_file() for module in (sizes, worlds)],
}))
"""

# PEP 552: an unchecked hash-based .pyc names the source that it was made from, and nobody looks at import.
BYTECODE = """
import importlib.util, json, sys
from pathlib import Path

wrong, count = [], 0
for source in sorted(Path(SITE, "sglang").rglob("*.py")):
    compiled = Path(importlib.util.cache_from_source(str(source)))
    data = compiled.read_bytes() if compiled.is_file() else b""
    made_from = importlib.util.source_hash(source.read_bytes())
    count += 1
    if data[:4] != importlib.util.MAGIC_NUMBER or data[4:8] != b"\\1\\0\\0\\0" or data[8:16] != made_from:
        wrong.append(str(source))
print(json.dumps({"version": sys.version_info[:2], "prefix": sys.prefix, "count": count, "wrong": wrong}))
"""


@dataclass(frozen=True)
class Replica:
    layout: Path
    wheel: Path
    subject: Subject
    built: Built
    space: Workspace


def base(folder: Path, program: Path) -> Path:
    """An image with a Python, the libraries it needs and ldconfig, as /usr of a distribution would have them."""
    rows: list[Row] = [("usr/bin/python3.12", program.read_bytes())]
    library = program.parent.parent / "lib/python3.12"
    for file in sorted(path for path in library.rglob("*") if path.is_file()):
        if not {"test", "site-packages", "__pycache__"} & set(file.relative_to(library).parts):
            rows.append((f"usr/lib/python3.12/{file.relative_to(library)}", file.read_bytes()))
    ldconfig = Path("/sbin/ldconfig").resolve()
    rows.append(("sbin/ldconfig", ldconfig.read_bytes()))
    extensions = library.glob("lib-dynload/*.so")
    said = subprocess.run(["ldd", program, *extensions], capture_output=True, text=True, check=True).stdout
    for needed in sorted(set(re.findall(r"(?:=> |^\t)(/\S+) \(", said, re.MULTILINE))):
        rows.append((needed.lstrip("/"), Path(needed).read_bytes()))
    return write_layout(folder, [layer_tar(rows)])


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    root = tmp_path_factory.mktemp("replica")
    folder = stack_file.find(STACK)
    spec, lock = stack_file.load(folder), lock_file.load(folder)
    assert list(spec.patches.series) == SERIES
    only = replace(lock, artifacts=tuple(each for each in lock.artifacts if each.name == "sglang"))
    with Http() as http:
        (got,) = fetch(
            only, Store(root / "wheels"), network=lambda: Network(http, indexes_of(spec, http)), progress=Silent()
        )
    subject = Subject.of_stack(spec, only, "sm_120", model.series(SERIES, folder))
    options = Options(base=f"oci:{base(root / 'base', Path(INTERPRETER or ''))}")
    space = Workspace(root / "cache")
    built = build(subject, {got.artifact.filename: got.path}, options, space, Silent())
    output.write(built, output.parse(str(root / "out")), space.blobs, Silent())
    return Replica(root / "out", got.path, subject, built, space)


@pytest.fixture(scope="module")
def loaded(replica: Replica) -> Iterator[str]:
    tag = f"stackb-test-replica:{os.getpid()}"
    client = daemon.connect()
    daemon.send(client, replica.space.blobs, replica.built.image, tag, Silent())
    yield tag
    client.images.remove(tag, force=True)


def in_container(tag: str, *argv: str) -> str:
    said = daemon.connect().containers.run(tag, list(argv), network_mode="none", remove=True)
    return bytes(said).decode()


def stackb(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = run(list(arguments))
    return code, capsys.readouterr().out


def test_every_module_compiles_by_the_images_own_python(loaded: str) -> None:
    program = f"{SITE.rsplit('/', 3)[0]}/bin/python"
    assert in_container(loaded, program, "-m", "compileall", "-q", "-f", f"{SITE}/sglang") == ""


def test_the_bytecode_is_that_of_the_patched_modules(replica: Replica, loaded: str) -> None:
    found = json.loads(in_container(loaded, "python", "-c", f"SITE = {SITE!r}\n{BYTECODE}"))
    assert found["version"] == [3, 12]
    assert found["prefix"] == "/opt/venv"
    names = zipfile.ZipFile(replica.wheel).namelist()
    assert found["count"] == sum(name.startswith("sglang/") and name.endswith(".py") for name in names) > 1000
    assert found["wrong"] == []


def test_the_tables_read_back(loaded: str) -> None:
    """64 MiB for 2 and 4 GPUs and 128 MiB for 6 and 8, as for compute capability 10."""
    found = json.loads(in_container(loaded, "python", "-c", f"SITE = {SITE!r}\n{TABLES}"))
    assert found["sizes"]["12"] == {"2": 64 * MIB, "4": 64 * MIB, "6": 128 * MIB, "8": 128 * MIB}
    assert set(found["sizes"]) == {"9", "10", "12"}
    assert found["worlds"] == {"9": [4, 6, 8], "10": [6, 8], "12": [6, 8]}
    assert found["compiled"] == [True, True]


def test_the_contract_is_satisfied_in_the_image_and_not_in_the_wheel(
    replica: Replica, capsys: pytest.CaptureFixture[str]
) -> None:
    architecture = "KimiK25ForConditionalGeneration"
    asked = ["sglang", "contract", architecture, "--target"]
    code, said = stackb(capsys, *asked, f"oci:{replica.layout}")
    assert (code, "as target: has all that EAGLE-3 needs" in said) == (0, True)
    code, said = stackb(capsys, *asked, f"wheels:{replica.wheel.parent}")
    assert "as target: lacks get_embed_and_head, set_eagle3_layers_to_capture" in said


def test_the_image_says_what_is_applied(replica: Replica, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = stackb(capsys, "patch", "status", f"oci:{replica.layout}", "--stack", STACK, "--format", "json")
    rows = json.loads(said)["facts"]["patches"]
    assert code == 0
    assert [(row["id"], row["state"]) for row in rows] == [(name, "applied") for name in SERIES]
    stated = {row["id"]: row["sha256"] for row in rows}
    config = json.loads(replica.space.blobs.path(replica.built.image.config_digest).read_bytes())
    label = config["config"]["Labels"]["dev.stackb.patches"]
    assert dict(part.split("=") for part in label.split()) == stated
    receipt = json.loads((replica.layout / output.RECEIPT).read_text())
    assert {patch["id"]: patch["sha256"] for patch in receipt["patches"]} == stated
