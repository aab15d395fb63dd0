"""Kernel wheels as PyPI serves them against the symbol history that ships: how many symbols each object would miss.

The numbers were established with ``nm -D`` of the same wheels and of torch's libraries. Only the smaller objects are
read, by range; the large ones (flash_ops has 850 MB) were measured once with the same result: 1 of sgl-kernel 0.3.21
against torch 2.10.0, and 5, 2 and 0 of sglang-kernel 0.4.3 against 2.9.1, 2.10.0 and 2.11.0.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack_builder.diagnose.abi import history as abi_history
from stack_builder.diagnose.abi import record as abi_record
from stack_builder.elf.object import parse
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import Index, configured_default

pytestmark = pytest.mark.online

OLD = ("sgl-kernel", "sgl_kernel-0.3.21-cp310-abi3-manylinux2014_x86_64.whl")
NEW = ("sglang-kernel", "sglang_kernel-0.4.3-cp310-abi3-manylinux2014_x86_64.whl")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with Http() as http:
        yield Index("default", configured_default(), http)


@pytest.mark.parametrize(
    ("wheel", "name", "missing"),
    [
        (OLD, "sgl_kernel/flashmla_ops.abi3.so", {"2.9.1": 0, "2.10.0": 2}),
        (OLD, "sgl_kernel/spatial_ops.abi3.so", {"2.9.1": 0, "2.10.0": 0}),
        (OLD, "deep_gemm/deep_gemm_cpp.abi3.so", {"2.9.1": 0, "2.10.0": 0}),
        (NEW, "sgl_kernel/flashmla_ops.abi3.so", {"2.9.1": 7, "2.10.0": 3, "2.11.0": 0}),
        (NEW, "sgl_kernel/sm90/common_ops.abi3.so", {"2.9.1": 7, "2.10.0": 3, "2.11.0": 0}),
        (NEW, "sgl_kernel/sm100/common_ops.abi3.so", {"2.9.1": 7, "2.10.0": 3, "2.11.0": 0}),
    ],
)
def test_missing_symbols_per_object_and_torch(
    index: Index, wheel: tuple[str, str], name: str, missing: dict[str, int]
) -> None:
    (file,) = index.find(*wheel)
    with index.open(file) as opened:
        archive = WheelArchive(opened, file.filename)
        entry = archive.find(name)
        assert entry is not None
        data = archive.read(entry, 64 << 20)
    symbols = {reference.name.decode() for reference in parse(data, name).symbols.undefined()}
    history = abi_history.torch_history()
    assert {torch: _absent(history, symbols, torch) for torch in missing} == missing


def _absent(history: abi_history.TorchHistory, symbols: set[str], torch: str) -> int:
    """How many symbols another recorded torch exports and this one does not."""
    return sum(torch not in history.fitting([symbol]) for symbol in symbols)


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")
def test_an_object_for_aarch64_reads_as_readelf_reads_it(index: Index, tmp_path: Path) -> None:
    name = "sgl_kernel/spatial_ops.abi3.so"
    (file,) = index.find("sglang-kernel", "sglang_kernel-0.4.3-cp310-abi3-manylinux2014_aarch64.whl")
    with index.open(file) as opened:
        archive = WheelArchive(opened, file.filename)
        entry = archive.find(name)
        assert entry is not None
        data = archive.read(entry, 64 << 20)
    (tmp_path / "object.so").write_bytes(data)
    said = {
        option: subprocess.run(
            ["readelf", "-W", option, tmp_path / "object.so"], capture_output=True, text=True, check=True
        ).stdout
        for option in ("-h", "-d", "--dyn-syms", "-V")
    }
    found = parse(data, name)
    assert "AArch64" in said["-h"]
    assert found.identity.machine == "aarch64"
    assert list(found.needed) == re.findall(r"\(NEEDED\) .*\[(.+)\]", said["-d"])
    rows = [line.split() for line in said["--dyn-syms"].splitlines() if re.match(r"\s+\d+: ", line)]
    asked = {row[7].partition("@")[0] for row in rows if row[6] == "UND" and row[4] != "LOCAL"}
    assert {reference.name.decode() for reference in found.symbols.undefined()} == asked
    offered = {
        row[7].partition("@")[0]
        for row in rows
        if row[6] != "UND" and row[4] in ("GLOBAL", "WEAK", "UNIQUE") and row[5] in ("DEFAULT", "PROTECTED")
    }
    assert {symbol for symbol, _version in found.symbols.defined()} == offered
    needs = set(re.findall(r"Name: (\S+)\s+Flags", said["-V"].partition("version_r")[2] or said["-V"]))
    assert {need.version for need in found.version_needs} == needs
    assert any(need.version.startswith("GLIBC_2.17") for need in found.version_needs)  # the first of aarch64


def test_the_recorder_downloads_what_pip_is_configured_for() -> None:
    with abi_record.open_wheel("packaging", "24.2", None) as archive:
        assert archive.filename == "packaging-24.2-py3-none-any.whl"
