"""What import torch opens, from sources shaped like those of torch 2.9, 2.11 and 2.14."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stack_builder.elf.files import ObjectCache
from stack_builder.elf.linker import Process
from stack_builder.elf.search import Settings
from stack_builder.elf.torch_loading import Preload, load_torch, read_plan
from stack_builder.trees.directory import DirectoryTree
from tests.unit.elf.conftest import Compile

PATHS = """
def _get_cuda_dep_paths(path: str, lib_folder: str, lib_name: str) -> list[str]:
    from torch.version import cuda as cuda_version
    nvidia_lib_paths = glob.glob(os.path.join(path, "nvidia", lib_folder, "lib", lib_name))
    if cuda_version is not None:
        maj_cuda_version = cuda_version.split(".")[0]
        nvidia_lib_paths += glob.glob(os.path.join(path, "nvidia", f"cu{maj_cuda_version}", "lib", lib_name))
    lib_paths = glob.glob(os.path.join(path, lib_folder, "lib", lib_name))
    return nvidia_lib_paths + lib_paths
"""
TORCH_2_9 = (
    PATHS
    + """
def _preload_cuda_deps(lib_folder: str, lib_name: str, required: bool = True) -> None:
    ctypes.CDLL(lib_path)

def _load_global_deps() -> None:
    if platform.system() == "Windows":
        return
    try:
        ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)
        try:
            with open("/proc/self/maps") as f:
                _maps = f.read()
            if "libcudart.so" not in _maps:
                return
            _preload_cuda_deps("cuda_nvrtc", "libnvrtc.so.*[0-9]")
        except Exception:
            pass
    except OSError as err:
        cuda_libs: dict[str, str] = {"cublas": "libcublas.so.*[0-9]", "cudnn": "libcudnn.so.*[0-9]"}
        for lib_folder, lib_name in cuda_libs.items():
            _preload_cuda_deps(lib_folder, lib_name)
        _preload_cuda_deps("nvtx", "libnvToolsExt.so.*[0-9]", required=False)
        ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)
"""
)
TORCH_2_14 = (
    PATHS
    + """
def _preload_cuda_lib(lib_folder: str, lib_name: str, required: bool = True) -> None:
    ctypes.CDLL(lib_path)

def _preload_cuda_deps(err: OSError | None = None, required: bool = True) -> None:
    cuda_libs: list[tuple[str, str]] = [
        ("cuda_nvrtc", "libnvrtc.so.*[0-9]"),
        ("cufft", "libcufft.so.*[0-9]"),
    ]
    if err is not None and not [lib for _, lib in cuda_libs if lib in err.args[0]]:
        raise err
    for lib_folder, lib_name in cuda_libs:
        _preload_cuda_lib(lib_folder, lib_name, required=required)

def _load_global_deps() -> None:
    try:
        ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)
        try:
            _preload_cuda_deps(required=False)
        except Exception:
            pass
    except OSError as err:
        _preload_cuda_deps(err)
        ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)
"""
)


def test_the_plan_of_single_calls_and_a_dictionary() -> None:
    plan = read_plan(TORCH_2_9.encode())
    assert plan.after == (Preload("cuda_nvrtc", "libnvrtc.so.*[0-9]", required=True),)
    assert plan.rescue == (
        Preload("cublas", "libcublas.so.*[0-9]", required=True),
        Preload("cudnn", "libcudnn.so.*[0-9]", required=True),
        Preload("nvtx", "libnvToolsExt.so.*[0-9]", required=False),
    )
    assert plan.only_with == ("libcudart.so",)
    assert plan.folders == (
        ("nvidia", "*folder*", "lib", "*name*"),
        ("nvidia", "cu*cuda*", "lib", "*name*"),
        ("*folder*", "lib", "*name*"),
    )


def test_the_plan_of_a_list_in_another_function() -> None:
    plan = read_plan(TORCH_2_14.encode())
    assert [(p.pattern, p.required) for p in plan.after] == [
        ("libnvrtc.so.*[0-9]", False),
        ("libcufft.so.*[0-9]", False),
    ]
    assert [(p.pattern, p.required) for p in plan.rescue] == [
        ("libnvrtc.so.*[0-9]", True),
        ("libcufft.so.*[0-9]", True),
    ]
    assert plan.only_with == ()


@pytest.mark.parametrize("source", ["", "def broken(", "x = 1", "def _load_global_deps(): pass", "\0", "(" * 5000])
def test_other_sources_give_an_empty_plan(source: str) -> None:
    plan = read_plan(source.encode())
    assert (plan.after, plan.rescue) == ((), ())


@pytest.fixture
def site(compile_shared: Compile) -> Path:
    """A torch of empty libraries: global deps need libcudart, _C needs libtorch, which needs libcufft."""
    cudart = compile_shared("empty.c", "site/nvidia/cu13/lib/libcudart.so.13", "-Wl,-soname,libcudart.so.13")
    cufft = compile_shared("empty.c", "site/nvidia/cu13/lib/libcufft.so.12", "-Wl,-soname,libcufft.so.12")
    compile_shared("empty.c", "site/nvidia/cu13/lib/libnvrtc.so.13", "-Wl,-soname,libnvrtc.so.13")
    keep = "-Wl,--no-as-needed"
    rpath = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib"
    compile_shared("empty.c", "site/torch/lib/libtorch_global_deps.so", keep, str(cudart), rpath)
    torch = compile_shared("empty.c", "site/torch/lib/libtorch.so", keep, str(cufft), "-Wl,-soname,libtorch.so")
    compile_shared(
        "empty.c", "site/torch/_C.cpython-311-x86_64-linux-gnu.so", keep, str(torch), "-Wl,-rpath,$ORIGIN/lib"
    )
    return torch.parents[2]


@pytest.fixture
def process() -> Iterator[Process]:
    with ObjectCache(DirectoryTree()) as objects:
        yield Process(objects, Settings("x86_64", directories=("/lib/x86_64-linux-gnu/",)))


def opened(site: Path, process: Process, source: str, cuda: int | None = 13) -> tuple[list[str], str | None]:
    (site / "torch/__init__.py").write_text(source)
    found = load_torch(process, DirectoryTree(), str(site / "torch"), (str(site),), cuda)
    return [step.path.rpartition("/")[2] for step in found.steps], found.error


def test_libraries_are_opened_in_the_order_of_the_source(site: Path, process: Process) -> None:
    names, error = opened(site, process, TORCH_2_14)
    assert error is None
    assert names[:-1] == ["libtorch_global_deps.so", "libnvrtc.so.13", "libcufft.so.12"]
    assert names[-1].startswith("_C.")
    cufft = process.loaded("libcufft.so.12")
    assert cufft is not None  # libtorch has no rpath to it: only the preload makes the import work
    assert cufft.real == str(site / "nvidia/cu13/lib/libcufft.so.12")


def test_without_the_preload_the_import_fails(site: Path, process: Process) -> None:
    names, error = opened(site, process, TORCH_2_9)
    assert names[:2] == ["libtorch_global_deps.so", "libnvrtc.so.13"]
    assert error is not None
    assert error.startswith("libcufft.so.12: cannot open shared object file")


def test_another_cuda_major_finds_no_preloads(site: Path, process: Process) -> None:
    names, error = opened(site, process, TORCH_2_14, cuda=12)
    assert names[:1] == ["libtorch_global_deps.so"]
    assert len(names) == 2
    assert error is not None


def test_the_rescue_comes_when_global_deps_lack_a_library(site: Path, process: Process) -> None:
    (site / "nvidia/cu13/lib/libcudart.so.13").rename(site / "nvidia/cu13/lib/libcublas.so.13")
    rescued = TORCH_2_9.replace('"cudnn": "libcudnn.so.*[0-9]"', '"cufft": "libcufft.so.*[0-9]"')
    names, error = opened(site, process, rescued)
    # libcublas.so.13 is the renamed libcudart, which keeps its soname: so it serves, as ld.so has it
    assert names[:4] == ["libtorch_global_deps.so", "libcublas.so.13", "libcufft.so.12", "libtorch_global_deps.so"]
    assert error is None
