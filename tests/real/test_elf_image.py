"""The static linker against the ld.so of a whole built image, inside it. Opt-in: some minutes on two cores.

    STACKB_TEST_LAYOUT=out/cu130-sglang-0.5.23 STACKB_TEST_IMAGE=TAG [STACKB_TEST_OTHER_CUDA=FOLDER] \
        pytest tests/real/test_elf_image.py

STACKB_TEST_IMAGE is the same image, loaded into Docker. STACKB_TEST_OTHER_CUDA holds the libraries of another CUDA
major (``pip download nvidia-cuda-nvrtc-cu12 …``, unpacked into one folder); they go into the linker cache of a
container, by ``ldconfig``, for the last test.

Seen on cu130-sglang-0.5.23 (image sha256:6775109ba6e6…): 1,157 objects, 65,705 unresolved symbols (each object alone,
so Python's count), 136 missing libraries and 5,197 chosen paths, all equal; likewise the paths under LD_LIBRARY_PATH,
and, with and without it, after CUDA 12.9's libraries were put into the linker cache. On cu130-sglang-0.5.17: 1,170
objects, 69,502 unresolved symbols, 151 missing libraries, 5,028 chosen paths, all equal (the first test alone).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stack_builder.elf.files import ObjectCache
from stack_builder.elf.layout import ElfError
from stack_builder.elf.linker import Process
from stack_builder.elf.search import read_settings
from stack_builder.trees import FileTree
from stack_builder.trees.directory import DirectoryTree
from stack_builder.trees.members import MemberCache
from stack_builder.trees.oci import OciTree
from tests.union import UnionTree
from tests.unit.elf.oracle import Traced, read_trace

LAYOUT, IMAGE, OTHER = (os.environ.get(f"STACKB_TEST_{name}", "") for name in ("LAYOUT", "IMAGE", "OTHER_CUDA"))
CACHE = os.environ.get("STACKB_TEST_CACHE", "")  # keeps what is read of the image from one run to the next
OTHER_FOLDER = "/opt/other-cuda"

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not (LAYOUT and IMAGE), reason="STACKB_TEST_LAYOUT and STACKB_TEST_IMAGE name no image"),
]

TRACER = """
import json, subprocess, sys
asked = json.loads(sys.stdin.readline())
for path in asked["paths"]:
    done = subprocess.run(["/lib64/ld-linux-x86-64.so.2", path], env=asked["environ"], capture_output=True)
    print(json.dumps([path, (done.stdout + done.stderr).decode(errors="replace")]), flush=True)
"""
SYMBOLS = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_BIND_NOW": "yes"}  # what ldd -r sets
LIBRARIES = {"LD_TRACE_LOADED_OBJECTS": "1"}


@pytest.fixture(scope="module")
def tree() -> Iterator[OciTree]:
    with OciTree(Path(LAYOUT), cache=MemberCache(Path(CACHE)) if CACHE else None) as opened:
        asked = ["docker", "image", "inspect", "--format", "{{.Id}}", IMAGE]
        image_id = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip().partition(":")[2]
        assert (Path(LAYOUT) / "blobs/sha256" / image_id).is_file(), "the layout and Docker's image are not the same"
        yield opened


@pytest.fixture(scope="module")
def objects(tree: OciTree) -> list[str]:
    """Every shared object of the image that the linker reads."""
    with ObjectCache(tree) as cache:
        found = []
        for entry in tree.entries():
            if ".so" in entry.path.rpartition("/")[2] and entry.link is None:
                identity = cache.identity(entry.path)
                if identity is not None and identity.machine == "x86_64" and identity.readable:
                    found.append(entry.path)
    assert len(found) > 100
    return found


def traced(
    paths: list[str], environ: Mapping[str, str], *, prepare: str = "true", mount: str = ""
) -> tuple[dict[str, Traced], bytes]:
    """What ld.so in a container of the image says of each object, and the linker cache that it had."""
    script = f"{prepare} && cat /etc/ld.so.cache >/out/cache && exec python3 -c '{TRACER}'"
    folder = Path(os.environ["STACKB_CACHE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    command = ["docker", "run", "--rm", "-i", "--network=none", "--user=0", "-v", f"{folder}:/out"]
    command += ["-v", f"{mount}:{OTHER_FOLDER}:ro"] if mount else []
    asked = json.dumps({"paths": paths, "environ": dict(environ)}) + "\n"
    done = subprocess.run(
        [*command, "--entrypoint=/bin/sh", IMAGE, "-c", script], input=asked, capture_output=True, text=True, check=True
    )
    rows = (json.loads(line) for line in done.stdout.splitlines())
    return {path: read_trace(out) for path, out in rows}, (folder / "cache").read_bytes()


def differences(tree: FileTree, truth: dict[str, Traced], *, symbols: bool, library_path: str = "") -> list[object]:
    """Objects of which the static linker says anything else than ld.so."""
    found: list[object] = []
    with ObjectCache(tree) as cache:
        settings = read_settings(tree, "x86_64", library_path=library_path)
        for path, expected in truth.items():
            try:
                linked = Process(cache, settings).start(path)
            except ElfError as error:
                if expected.fatal is None:
                    found.append((path, str(error)))
                continue
            chosen = {library.name: library.found.path for library in linked.closure[1:]}
            ours: list[object] = [
                {lost.soname for lost in linked.missing_libraries} | set(linked.outside_libraries),
                {name: chosen.get(name) for name in expected.paths},
            ]
            theirs: list[object] = [expected.missing_libraries, expected.paths]
            if symbols:
                # Of a symbol whose library is missing, too, ld.so says the version at times and at times not.
                ours.append({lost.name for lost in linked.missing_symbols} | set(linked.outside_symbols))
                theirs.append({name for name, _version in expected.missing_symbols})
                ours.append({(lost.library, lost.version) for lost in linked.missing_versions})
                theirs.append({(Path(library).name, version) for library, version in expected.missing_versions})
            if ours != theirs:
                found.append((path, ours, theirs))
    return found


def test_symbols_and_libraries_equal_those_of_ldd(tree: OciTree, objects: list[str]) -> None:
    truth, _ = traced(objects, SYMBOLS)
    assert len(truth) == len(objects)
    assert differences(tree, truth, symbols=True) == []


def test_paths_under_a_library_path(tree: OciTree, objects: list[str]) -> None:
    """A folder with libraries that objects would otherwise take from beside them."""
    libraries = sorted({path.rpartition("/")[0] for path in objects if "/nvidia/" in path and "/lib/" in path})
    library_path = ":".join(libraries)
    truth, _ = traced(objects, {**LIBRARIES, "LD_LIBRARY_PATH": library_path})
    assert differences(tree, truth, symbols=False, library_path=library_path) == []


@pytest.mark.skipif(not OTHER, reason="STACKB_TEST_OTHER_CUDA names no folder")
@pytest.mark.parametrize("under_library_path", [False, True])
def test_paths_with_another_cuda_major_in_the_linker_cache(
    tree: OciTree, objects: list[str], tmp_path: Path, under_library_path: bool
) -> None:
    prepare = f"echo {OTHER_FOLDER} >/etc/ld.so.conf.d/other.conf && ldconfig"
    library_path = OTHER_FOLDER if under_library_path else ""
    environ = {**LIBRARIES, **({"LD_LIBRARY_PATH": library_path} if library_path else {})}
    truth, linker_cache = traced(objects, environ, prepare=prepare, mount=OTHER)
    upper = tmp_path / "upper"
    (upper / "etc").mkdir(parents=True)
    (upper / "etc/ld.so.cache").write_bytes(linker_cache)
    (upper / OTHER_FOLDER.lstrip("/")).parent.mkdir(parents=True)
    shutil.copytree(OTHER, upper / OTHER_FOLDER.lstrip("/"), copy_function=os.link)
    changed = UnionTree(DirectoryTree(upper), tree)
    taken = {path for found in truth.values() for path in found.paths.values()}
    assert any(path.startswith(OTHER_FOLDER) for path in taken), "the other major changes nothing"
    assert differences(changed, truth, symbols=False, library_path=library_path) == []
