from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from stack_builder.diagnose.abi import history as abi_history
from stack_builder.diagnose.abi import record as abi_record
from stack_builder.diagnose.abi.record import TorchExports
from stack_builder.elf.torch_names import is_torch_name
from stack_builder.progress import Silent
from stack_builder.wheels.archive import WheelArchive

TENSOR, CHECK, OLD, GLOBAL = (
    "_ZN3c1010TensorImplD1Ev",
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb",
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
    "_Z20cutlass_moe_mm_sm100RN2at6TensorE",
)


def compile_library(path: Path, soname: str, functions: list[str], *needs: Path, calls: tuple[str, ...] = ()) -> Path:
    """Make a shared object that exports ``functions`` and calls ``calls``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = "".join(f"void {name}(void);\n" for name in (*functions, *calls))
    source += "".join(f"void {name}(void) {{}}\n" for name in functions)
    source += "void entry(void) {" + "".join(f"{name}();" for name in calls) + "}\n"
    command = ["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", "-x", "c", "-", "-x", "none", *map(str, needs)]
    command += [f"-Wl,-soname,{soname}", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def torch_wheel(folder: Path, version: str, cuda: str, symbols: list[str]) -> Path:
    library = compile_library(folder / "libc10.so", "libc10.so", symbols)
    wheel = folder / f"torch-{version}-cp312-cp312-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(library, "torch/lib/libc10.so")
        archive.writestr("torch/version.py", f"__version__ = '{version}+cu1'\ncuda: str = '{cuda}'\n")
    return wheel


def exports_of(wheel: Path) -> TorchExports:
    with wheel.open("rb") as file:
        return abi_record.read_torch(WheelArchive(file, wheel.name))


@pytest.fixture
def torches(tmp_path: Path) -> list[TorchExports]:
    old = torch_wheel(tmp_path, "2.9.1", "12.8", [TENSOR, OLD, "xnn_other"])
    new = torch_wheel(tmp_path, "2.10.0", "12.8", [TENSOR, CHECK])
    return [exports_of(new), exports_of(old)]


def test_the_history_keeps_what_differs_and_orders_releases(torches: list[TorchExports]) -> None:
    history = abi_record.merge_torch(torches)
    assert [(r.version, r.cuda, r.cxx11_abi) for r in history.releases] == [
        ("2.9.1", "12.8", False),
        ("2.10.0", "12.8", False),
    ]
    assert history.changed == {OLD: 0b01, CHECK: 0b10}


def test_a_kernel_wheel_fits_the_torch_that_has_all_it_imports(torches: list[TorchExports], tmp_path: Path) -> None:
    cudart = compile_library(tmp_path / "stub/libcudart.so.13", "libcudart.so.13", [])
    kernel = compile_library(tmp_path / "k/ops.abi3.so", "ops", [], cudart, calls=(TENSOR, CHECK, GLOBAL))
    wheel = tmp_path / "sglang_kernel-0.4.3-cp310-abi3-manylinux2014_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(kernel, "sgl_kernel/ops.abi3.so")
    with wheel.open("rb") as file:
        imports = abi_record.read_kernel(WheelArchive(file, wheel.name))
    undefined = subprocess.run(
        ["nm", "-D", "-u", str(kernel)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert imports.symbols == {TENSOR, CHECK}
    assert set(undefined) > imports.symbols  # GLOBAL is undefined, too, and is not torch's
    release = abi_record.kernel_release(imports, torches)
    assert (release.name, release.version, release.cuda_major, release.torch) == (
        "sglang-kernel",
        "0.4.3",
        13,
        ("2.10.0",),
    )


def test_both_tables_from_a_folder_of_wheels(tmp_path: Path) -> None:
    torch_wheel(tmp_path, "2.9.1", "12.8", [TENSOR, OLD])
    torch_wheel(tmp_path, "2.10.0", "12.8", [TENSOR, CHECK])
    cudart = compile_library(tmp_path / "stub/libcudart.so.12", "libcudart.so.12", [])
    kernel = compile_library(tmp_path / "k/ops.abi3.so", "ops", [], cudart, calls=(TENSOR, OLD))
    with zipfile.ZipFile(tmp_path / "sgl_kernel-0.3.21-cp310-abi3-manylinux2014_x86_64.whl", "w") as archive:
        archive.write(kernel, "sgl_kernel/ops.abi3.so")
    wanted = {"torch": ["2.9.1", "2.10.0"], "sgl-kernel": ["0.3.21"]}
    tables = abi_record.record(wanted, tmp_path, Silent())
    (tmp_path / "torch.json.gz").write_bytes(tables[0])
    (tmp_path / "kernels.json").write_text(tables[1])
    assert abi_history.torch_history(tmp_path / "torch.json.gz").changed == {OLD: 0b01, CHECK: 0b10}
    (release,) = abi_history.kernel_releases(tmp_path / "kernels.json")
    assert (release.cuda_major, release.torch) == (12, ("2.9.1",))
    assert abi_record.record(wanted, tmp_path, Silent()) == tables  # the second time from the cache


@pytest.mark.parametrize(
    ("symbol", "is_torchs"),
    [
        (TENSOR, True),
        (CHECK, True),
        ("_ZTIN3c105ErrorE", True),
        ("_ZNK2at10TensorBase8data_ptrIfEEPT_v", True),
        ("_ZN4c10d12ProcessGroupD1Ev", True),
        ("aoti_torch_get_data_ptr", True),
        ("torch_call_dispatcher", True),
        ("THPVariableClass", True),
        ("_Z16THPVariable_WrapN2at10TensorBaseE", True),
        (GLOBAL, False),
        ("_ZNSt6vectorIN2at6TensorESaIS1_EED1Ev", False),
        ("_ZN7cutlass4gemmEN2at6TensorE", False),
        ("cudaMalloc", False),
        ("atoi", False),
    ],
)
def test_whose_a_name_is(symbol: str, is_torchs: bool) -> None:
    assert is_torch_name(symbol) is is_torchs
