"""Environments that break on purpose, in small: doctor's word against that of the dynamic loader itself.

Every object is compiled here; torch and the wheels of NVIDIA are stand-ins with the sonames, search paths and symbols
of the real ones (readelf -d of torch 2.11.0 and sglang-kernel 0.4.5 from PyPI). ``import torch`` and then ``dlopen`` in
a process of its own says what happens; doctor has to say it before, without running any of it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack_builder.cli.app import run

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
TENSOR = "_ZN3c1010TensorImplD1Ev"
CHECK_INT = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"  # exported up to torch 2.9.1
CHECK_UNSIGNED = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"  # from 2.10.0 to 2.13.0
RUNPATH = (
    "$ORIGIN/../../nvidia/cuda_nvrtc/lib:$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN/../../nvidia/cu13/lib:$ORIGIN"
)

# The part of torch/__init__.py that opens libraries, cut down to what runs here; names and order are torch 2.11.0's.
TORCH_INIT = """
import ctypes
import glob
import os
import platform
import sys


def _get_cuda_dep_paths(path, lib_folder, lib_name):
    from torch.version import cuda as cuda_version

    nvidia_lib_paths = glob.glob(os.path.join(path, "nvidia", lib_folder, "lib", lib_name))
    if cuda_version is not None:
        maj_cuda_version = cuda_version.split(".")[0]
        nvidia_lib_paths += glob.glob(os.path.join(path, "nvidia", f"cu{maj_cuda_version}", "lib", lib_name))
    lib_paths = glob.glob(os.path.join(path, lib_folder, "lib", lib_name))
    return nvidia_lib_paths + lib_paths


def _preload_cuda_lib(lib_folder, lib_name, required=True):
    lib_path = None
    for path in sys.path:
        candidate_lib_paths = _get_cuda_dep_paths(path, lib_folder, lib_name)
        if candidate_lib_paths:
            lib_path = candidate_lib_paths[0]
            break
    if not lib_path and required:
        raise ValueError(f"{lib_name} not found in the system path {sys.path}")
    if lib_path:
        ctypes.CDLL(lib_path)


def _preload_cuda_deps(err=None):
    cuda_libs: list[tuple[str, str]] = [
        ("cuda_nvrtc", "libnvrtc.so.*[0-9]"),
        ("cuda_nvrtc", "libnvrtc-builtins.so.*[0-9]"),
        ("cuda_runtime", "libcudart.so.*[0-9]"),
    ]
    if err is not None and not [lib for _, lib in cuda_libs if lib.split(".", 1)[0] in err.args[0]]:
        raise err
    for lib_folder, lib_name in cuda_libs:
        _preload_cuda_lib(lib_folder, lib_name)


def _load_global_deps():
    lib_name = "libtorch_global_deps.so"
    here = os.path.abspath(__file__)
    global_deps_lib_path = os.path.join(os.path.dirname(here), "lib", lib_name)
    try:
        ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)
        try:
            with open("/proc/self/maps") as f:
                _maps = f.read()
            if "libcudart.so" not in _maps:
                return
            _preload_cuda_deps()
        except Exception:
            pass
    except OSError as err:
        _preload_cuda_deps(err)
        ctypes.CDLL(global_deps_lib_path, mode=ctypes.RTLD_GLOBAL)


_load_global_deps()
from torch._C import *
"""


MODULE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", 0, -1, 0};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&definition); }
"""


class Venv:
    """A virtual environment of stand-ins."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / f"lib/python{PYTHON}/site-packages"
        self.site.mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "bin/python3").symlink_to(Path(sys.executable).resolve())
        (root / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\nversion = {PYTHON}.0\n")
        self._stubs = root.parent / f"{root.name}-stubs"

    def distribution(self, name: str, version: str, *files: Path, requires: tuple[str, ...] = ()) -> None:
        """Write a ``.dist-info`` whose RECORD lists ``files``."""
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\n")
        rows = [f"{path.relative_to(self.site)},sha256={_digest(path)},{path.stat().st_size}" for path in files]
        (folder / "RECORD").write_text("\n".join(rows) + "\n")

    def library(
        self,
        path: str,
        soname: str | None = None,
        *,
        exports: tuple[str, ...] = (),
        calls: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        runpath: str | None = None,
        data: str = "",
        source: str = "",
    ) -> Path:
        """Compile a shared object; ``needs`` are sonames, whether or not anything in the environment has them."""
        out = self.site / path
        out.parent.mkdir(parents=True, exist_ok=True)
        source += "".join(f"void {name}(void);\n" for name in calls)
        source += "".join(f"void {name}(void) {{}}\n" for name in exports)
        source += (
            f'const char *data = "{data}";\nvoid *calls[] = {{{", ".join(f"(void *){name}" for name in calls)}}};\n'
        )
        stubs = [str(self._stub(name)) for name in needs]
        include = f"-I{sysconfig.get_path('include')}"
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            include,
            "-Wl,--no-as-needed",
            "-Wl,--allow-shlib-undefined",
            "-x",
            "c",
            "-",
        ]
        command += ["-x", "none", *stubs, "-Wl,-z,now", "-o", str(out)]
        command += [f"-Wl,-soname,{soname}"] if soname else []
        command += ["-Wl,--enable-new-dtags", f"-Wl,-rpath,{runpath}"] if runpath else []
        subprocess.run(command, input=source, text=True, check=True)
        return out

    def _stub(self, soname: str) -> Path:
        """An empty library to link against."""
        path = self._stubs / soname
        if not path.exists():
            self._stubs.mkdir(exist_ok=True)
            command = ["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", f"-Wl,-soname,{soname}", "-o", str(path)]
            subprocess.run(command, check=True)
        return path

    def torch(
        self, version: str = "2.11.0", cuda: str | None = "13.0", *, exports: tuple[str, ...] = (TENSOR,)
    ) -> None:
        """Install torch: two libraries of its own, what it preloads, and the extension module that pulls them in."""
        major = cuda.partition(".")[0] if cuda else None
        runtime = (f"libcudart.so.{major}",) if major else ()
        files = [
            self.library("torch/lib/libc10.so", "libc10.so", exports=exports),
            self.library(
                "torch/lib/libtorch_global_deps.so", "libtorch_global_deps.so", needs=runtime, runpath=RUNPATH
            ),
            self.library(
                "torch/lib/libtorch.so",
                "libtorch.so",
                needs=("libc10.so", "libtorch_cuda.so") if cuda else ("libc10.so",),
                runpath=RUNPATH,
            ),
            self.library(
                f"torch/_C.cpython-{PYTHON.replace('.', '')}-x86_64-linux-gnu.so",
                needs=("libtorch.so",),
                runpath="$ORIGIN/lib",
                source=MODULE,
            ),
        ]
        if cuda:
            needs = ("libc10.so", *runtime)
            files.append(self.library("torch/lib/libtorch_cuda.so", "libtorch_cuda.so", needs=needs, runpath=RUNPATH))
        label = f"+cu{cuda.replace('.', '')}" if cuda else "+cpu"
        (self.site / "torch/version.py").write_text(f"__version__ = '{version}{label}'\ncuda = {cuda!r}\nhip = None\n")
        (self.site / "torch/__init__.py").write_text(TORCH_INIT)
        self.distribution("torch", version, *files, self.site / "torch/version.py", self.site / "torch/__init__.py")

    def cuda(self, major: int, *, nvrtc: bool = True, builtins: str | None = None) -> None:
        """Install the runtime and NVRTC as NVIDIA's wheels of that major lay them out."""
        folder = {12: "nvidia/{}/lib", 13: "nvidia/cu13/lib"}[major]
        release = {12: "12.8", 13: "13.0"}[major]
        suffix = "-cu12" if major == 12 else ""
        runtime = self.library(f"{folder.format('cuda_runtime')}/libcudart.so.{major}", f"libcudart.so.{major}")
        self.distribution(f"nvidia-cuda-runtime{suffix}", f"{release}.48", runtime)
        if not nvrtc:
            return
        name = f"libnvrtc-builtins.so.{release}"
        compiler = self.library(
            f"{folder.format('cuda_nvrtc')}/libnvrtc.so.{major}",
            f"libnvrtc.so.{major}",
            exports=("nvrtcVersion",),
            data=name,
        )
        present = f"libnvrtc-builtins.so.{builtins or release}"
        part = self.library(f"{folder.format('cuda_nvrtc')}/{present}", present)
        self.distribution(f"nvidia-cuda-nvrtc{suffix}", f"{release}.48", compiler, part)

    def kernel(
        self,
        name: str,
        version: str,
        *,
        calls: tuple[str, ...] = (TENSOR,),
        cuda: int = 13,
        requires: tuple[str, ...] = (),
    ) -> str:
        """Install SGLang's kernel wheel with one library, which has no RPATH, as the real ones; give its path."""
        needs = ("libtorch.so", "libtorch_cuda.so", "libc10.so", f"libnvrtc.so.{cuda}", f"libcudart.so.{cuda}")
        path = "sgl_kernel/sm100/common_ops.abi3.so"
        library = self.library(path, calls=calls, needs=needs)
        init = self.site / "sgl_kernel/__init__.py"
        init.write_text(f"# {name} {version}\n")
        self.distribution(name, version, library, init)
        if requires:
            self.distribution("sglang", "0.5.9", requires=requires)
        return path

    def loaders_word(self, path: str, **environ: str) -> str:
        """What the dynamic loader says: empty where the object loads after ``import torch``, else its message."""
        code = (
            "import sys, ctypes; sys.path.insert(0, sys.argv[1])\n"
            "import torch\n"
            "try:\n    ctypes.CDLL(sys.argv[1] + '/' + sys.argv[2])\n"
            "except OSError as error:\n    print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, str(self.site), path],
            capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], **environ},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def _digest(path: Path) -> str:
    import base64
    import hashlib

    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Venv:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return Venv(tmp_path / "venv")


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run ``stackb doctor`` on an environment and give its report."""

    def call(venv: Venv, *options: str) -> dict[str, Any]:
        code = run(["doctor", f"venv:{venv.root}", "--no-host", "--format", "json", *options])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == (1 if report["verdict"] == "findings" else 0)
        return report

    return call


Doctor = Callable[..., dict[str, Any]]


def about(report: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """The errors that concern one object."""
    return [f for f in report["findings"] if f["severity"] == "error" and (f["object"] or "").endswith(path)]


def test_a_set_that_fits_is_clean(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    path = venv.kernel("sglang-kernel", "0.4.5")
    assert venv.loaders_word(path) == ""
    assert [f for f in doctor(venv)["findings"] if f["severity"] != "note"] == []


def test_without_nvrtc_the_wheel_to_install_is_named(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13, nvrtc=False)
    path = venv.kernel("sglang-kernel", "0.4.5")
    assert venv.loaders_word(path).startswith("libnvrtc.so.13: cannot open")
    (finding,) = about(doctor(venv), path)
    assert (finding["rule"], finding["cause"]) == ("ABI002", "library_missing")
    assert finding["fix"] == ["Install nvidia-cuda-nvrtc==13.0.*, which ships libnvrtc.so.13"]


def test_only_cuda_12s_nvrtc_is_another_finding(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13, nvrtc=False)
    venv.cuda(12)
    path = venv.kernel("sglang-kernel", "0.4.5")
    assert venv.loaders_word(path).startswith("libnvrtc.so.13: cannot open")
    (finding,) = about(doctor(venv), path)
    assert (finding["rule"], finding["cause"]) == ("CUDA001", "cuda_major_mixed_between_wheels")
    assert finding["fix"] == ["Install nvidia-cuda-nvrtc==13.0.*: torch and the object are both of CUDA 13"]


def test_an_nvrtc_that_the_linker_cache_lacks_is_made_visible(
    venv: Venv, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.torch()
    venv.cuda(13, nvrtc=False)
    path = venv.kernel("sglang-kernel", "0.4.5")
    toolkit = tmp_path / "cuda-13.0/lib64"
    toolkit.mkdir(parents=True)
    shutil.copy(venv.library("x/libnvrtc.so.13", "libnvrtc.so.13"), toolkit)
    shutil.rmtree(venv.site / "x")
    monkeypatch.setenv("CUDA_HOME", str(toolkit.parent))
    assert venv.loaders_word(path).startswith("libnvrtc.so.13: cannot open")
    (finding,) = about(doctor(venv), path)
    assert (finding["rule"], finding["evidence"]["on_disk"]) == ("ABI003", ["~/cuda-13.0/lib64/libnvrtc.so.13"])
    assert "Let the loader look in ~/cuda-13.0/lib64" in finding["fix"][0]
    # the fix, applied
    monkeypatch.setenv("LD_LIBRARY_PATH", str(toolkit))
    assert venv.loaders_word(path, LD_LIBRARY_PATH=str(toolkit)) == ""
    assert about(doctor(venv), path) == []


def test_builtins_of_another_release_are_found_before_the_first_compilation(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13, builtins="13.1")
    path = venv.kernel("sglang-kernel", "0.4.5")
    assert venv.loaders_word(path) == ""  # the loader has nothing to say; NVRTC fails later
    (finding,) = about(doctor(venv), "libnvrtc.so.13")
    assert finding["rule"] == "CUDA006"
    assert "libnvrtc-builtins.so.13.0" in finding["detail"]
    assert "nvidia-cuda-nvrtc==13.0.*" in finding["fix"][0]


def test_a_cuda_12_nvrtc_hides_cuda_13s_from_torch(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    venv.cuda(12)
    path = venv.kernel("sglang-kernel", "0.4.5")
    assert venv.loaders_word(path).startswith("libnvrtc.so.13: cannot open")
    (finding,) = about(doctor(venv), path)
    assert finding["rule"] == "ABI003"
    assert finding["fix"][0].startswith("pip uninstall nvidia-cuda-nvrtc-cu12")
    # the fix, applied
    (venv.site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12").unlink()
    assert venv.loaders_word(path) == ""
    assert about(doctor(venv), path) == []


def test_torch_2_10_with_kernel_0_3_21(venv: Venv, doctor: Doctor) -> None:
    venv.torch("2.10.0", "12.8", exports=(TENSOR, CHECK_UNSIGNED))
    venv.cuda(12)
    path = venv.kernel("sgl-kernel", "0.3.21", calls=(TENSOR, CHECK_INT), cuda=12)
    assert f"undefined symbol: {CHECK_INT}" in venv.loaders_word(path)
    (finding,) = about(doctor(venv), path)
    assert (finding["rule"], finding["cause"]) == ("ABI001", "torch_minor_abi_mismatch")
    assert finding["distribution"] == "sgl-kernel 0.3.21"
    assert finding["evidence"]["missing"][0]["demangled"].startswith("c10::cuda::c10_cuda_check_implementation(int,")
    assert "Last exported by torch 2.9.1" in finding["detail"]
    assert finding["fix"][0] == "Install torch==2.9.1, which exports all that sgl-kernel 0.3.21 needs"


def test_a_cpu_torch_comes_first_and_once(venv: Venv, doctor: Doctor) -> None:
    venv.torch("2.9.1", None)
    venv.cuda(12)
    path = venv.kernel("sgl-kernel", "0.3.21", cuda=12)
    assert venv.loaders_word(path).startswith("libtorch_cuda.so: cannot open")
    errors = [f for f in doctor(venv)["findings"] if f["severity"] == "error"]
    assert errors[0]["rule"] == "CUDA003"
    assert errors[0]["cause"] == "resolver_replaced_or_misselected_torch"
    assert not any(f["evidence"].get("libraries") == ["libtorch_cuda.so"] for f in errors)


def test_a_cuda_12_kernel_under_a_cuda_13_torch(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    path = venv.kernel("sgl-kernel", "0.3.21", cuda=12)
    assert "libnvrtc.so.12: cannot open" in venv.loaders_word(path)
    (finding,) = about(doctor(venv), path)
    assert finding["rule"] == "CUDA001"
    assert "Remove sgl-kernel, then install sglang-kernel==0.4." in finding["fix"][0]


def test_both_majors_in_one_process(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    venv.cuda(12)
    path = venv.kernel("sgl-kernel", "0.3.21", cuda=12)
    assert venv.loaders_word(path) == ""  # torch opened CUDA 12's libraries, as the first that match
    (finding,) = about(doctor(venv), path)
    assert (finding["rule"], finding["cause"]) == ("CUDA002", "cuda_major_mixed_between_wheels")
    assert "libcudart.so.12" in finding["evidence"]["libraries"]


def test_the_renamed_kernel_installed_twice(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    venv.kernel("sgl-kernel", "0.3.21")
    venv.kernel("sglang-kernel", "0.4.5", calls=(TENSOR, "free"))
    (finding,) = about(doctor(venv), "sgl_kernel")
    assert (finding["rule"], finding["cause"]) == ("ABI009", "sibling_wheel_version_skew")
    assert finding["evidence"]["owners"] == ["sgl-kernel 0.3.21", "sglang-kernel 0.4.5"]
    assert finding["fix"][0].startswith("pip uninstall sgl-kernel sglang-kernel, then install sglang-kernel==0.4.5")


def test_text_leads_with_the_verdict_and_the_first_step(
    venv: Venv, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    venv.torch()
    venv.cuda(13, nvrtc=False)
    venv.kernel("sglang-kernel", "0.4.5")
    assert run(["doctor", str(venv.root), "--no-host"]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "1 error" in first
    assert second.startswith("First: Install nvidia-cuda-nvrtc==13.0.*")


def _made_for(path: Path, machine: int, bits: int = 64) -> None:
    """Rewrite e_machine and EI_CLASS of a compiled object, as a wheel for that machine has them."""
    data = bytearray(path.read_bytes())
    data[4], data[18:20] = bits // 32, machine.to_bytes(2, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("machine", "bits", "said"), [(0xB7, 64, "aarch64"), (62, 32, "x86_64 (32-bit)"), (3, 32, "i386 (32-bit)")]
)
def test_a_kernel_for_another_machine_is_an_error_that_names_both(
    venv: Venv, doctor: Doctor, machine: int, bits: int, said: str
) -> None:
    venv.torch()
    venv.cuda(13)
    path = venv.kernel("sglang-kernel", "0.4.5")
    _made_for(venv.site / path, machine, bits)
    assert venv.loaders_word(path) != ""
    errors = [f for f in doctor(venv, "--gpu", "sm_120")["findings"] if f["severity"] == "error"]
    (finding,) = errors
    assert (finding["rule"], finding["distribution"]) == ("ABI015", "sglang-kernel 0.4.5")
    assert f"made for {said}; this environment is for {platform.machine()}" in finding["detail"]
    assert "pip install --force-reinstall --no-deps sglang-kernel==0.4.5" in finding["fix"][0]


def test_a_torch_for_another_machine_is_said_first_and_once(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    venv.kernel("sglang-kernel", "0.4.5")
    for library in (venv.site / "torch").rglob("*.so"):
        _made_for(library, 0xB7)
    errors = [f for f in doctor(venv)["findings"] if f["severity"] == "error"]
    (finding,) = errors
    assert (finding["rule"], finding["distribution"], finding["evidence"]["made_for"]) == (
        "ABI015", "torch 2.11.0", "aarch64",
    )  # fmt: skip


def test_plugins_for_several_machines_side_by_side_are_no_mistake(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    venv.kernel("sglang-kernel", "0.4.5")
    here = venv.library("tools/linux-x86_64/libagent.so")
    there = venv.library("tools/linux-aarch64/libagent.so")
    bare = venv.library("tools/stub_arm64.so")
    for path in (there, bare):
        _made_for(path, 0xB7)
    venv.distribution("tools", "1.0", here, there, bare)
    assert [f for f in doctor(venv)["findings"] if f["severity"] != "note"] == []


@pytest.mark.parametrize("left", [0, 100, 4096])
def test_a_library_that_a_full_disk_cut_off_is_the_one_thing_that_is_said(
    venv: Venv, doctor: Doctor, left: int
) -> None:
    venv.torch(exports=(TENSOR,))
    venv.cuda(13)
    path = venv.kernel("sglang-kernel", "0.4.5")
    library = venv.site / "torch/lib/libc10.so"
    size = library.stat().st_size
    os.truncate(library, left)
    assert size > 4096
    findings = [f for f in doctor(venv)["findings"] if f["severity"] != "note"]
    (finding,) = findings
    assert (finding["rule"], finding["severity"], finding["object"]) == ("ABI011", "error", "torch/lib/libc10.so")
    assert f"has {left:,} bytes; RECORD says {size:,}" in finding["detail"]
    assert finding["fix"] == ["pip install --force-reinstall --no-deps torch==2.11.0"]
    assert path not in str(findings)


def test_libraries_that_are_gone_are_put_back_at_the_same_version(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    venv.kernel("sglang-kernel", "0.4.5")
    for library in (venv.site / "torch/lib").iterdir():
        library.unlink()
    (finding,) = [f for f in doctor(venv)["findings"] if f["severity"] != "note"]
    assert (finding["rule"], finding["severity"], finding["distribution"]) == ("ABI010", "error", "torch 2.11.0")
    assert finding["fix"] == ["pip install --force-reinstall --no-deps torch==2.11.0"]


def test_a_stripped_library_is_no_damage(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.cuda(13)
    venv.kernel("sglang-kernel", "0.4.5")
    subprocess.run(["strip", venv.site / "torch/lib/libc10.so"], check=True)
    report = doctor(venv)
    assert [f for f in report["findings"] if f["severity"] != "note"] == []
    (note,) = [f for f in report["findings"] if f["rule"] == "ABI011"]
    assert note["object"] == "torch/lib/libc10.so"


def test_what_a_missing_library_would_export_is_not_blamed_on_another_release_or_the_driver(
    venv: Venv, doctor: Doctor
) -> None:
    venv.torch()
    venv.cuda(13)
    names = ("libcudnn.so.9", "libcufile.so.0")
    inner = venv.library("torch/lib/libtorch_more.so", needs=names, calls=("cudnnGetVersion", "cuFileRead"))
    outer = venv.library("sgl_kernel/more.abi3.so", needs=("libtorch_more.so",), runpath="$ORIGIN/../torch/lib")
    venv.distribution("sglang-kernel", "0.4.5", inner, outer)
    assert "libcu" in venv.loaders_word("sgl_kernel/more.abi3.so")
    (finding,) = [f for f in doctor(venv)["findings"] if f["severity"] == "error"]
    assert (finding["rule"], finding["evidence"]["libraries"]) == ("ABI002", list(names))


def test_a_torch_without_its_requirements_gets_one_command(venv: Venv, doctor: Doctor) -> None:
    venv.torch()
    venv.kernel("sglang-kernel", "0.4.5")
    metadata = venv.site / "torch-2.11.0.dist-info/METADATA"
    # torch 2.14.1's own lines, cut to three
    lines = [
        'cuda-toolkit[cudart,nvrtc]==13.0.3; platform_system == "Linux"',
        'nvidia-nccl-cu13==2.30.7; platform_system == "Linux"',
        'pyyaml; extra == "pyyaml"',
    ]
    metadata.write_text(metadata.read_text().rstrip() + "".join(f"\nRequires-Dist: {line}" for line in lines) + "\n\n")
    (finding,) = [f for f in doctor(venv)["findings"] if f["severity"] == "error"]
    assert (finding["rule"], finding["distribution"]) == ("ABI002", "torch 2.11.0")
    assert finding["fix"] == ["pip install 'cuda-toolkit[cudart,nvrtc]==13.0.3' nvidia-nccl-cu13==2.30.7"]
    assert "libnvrtc.so.13" in finding["evidence"]["libraries"]  # the machine itself may have others
