from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from stack_builder.diagnose import cuda
from stack_builder.diagnose.abi.fixes import FixSource
from stack_builder.diagnose.abi.history import KernelRelease, TorchHistory, TorchRelease
from stack_builder.diagnose.abi.relevance import Knowledge, knowledge
from stack_builder.diagnose.environment.facts import (
    Distribution,
    Environment,
    JitCache,
    KernelLoader,
    Loaded,
    MissingLibrary,
    MissingSymbol,
    Nvrtc,
    Object,
    Python,
    SharedFile,
    Torch,
)
from stack_builder.diagnose.environment.jit import find_jit_caches
from stack_builder.report import Finding, Severity
from stack_builder.stack.gpu import Gpu

SITE = "/v/lib/python3.12/site-packages"
OPS = f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so"
HISTORY = TorchHistory((TorchRelease("2.11.0", "13.0", True),), {})
SOURCE = FixSource(HISTORY, (KernelRelease("sglang-kernel", "0.4.5", 13, ("2.11.0",)),))
KNOWN = Knowledge(HISTORY, SOURCE)


def environment(
    *objects: Object, version: str = "2.11.0+cu130", release: str | None = "13.0", **more: object
) -> Environment:
    facts = Environment(
        "x86_64",
        Python("3.12", "/v", (SITE,)),
        distributions=(
            Distribution("torch", version.partition("+")[0], "t"),
            Distribution("sgl-kernel", "0.3.21", "k"),
        ),
        torch=Torch(f"{SITE}/torch", version, release),
        objects=objects,
    )
    return dataclasses.replace(facts, **more)  # type: ignore[arg-type]


def judge(facts: Environment, expected: str | None = None) -> list[Finding]:
    return cuda.judge_cuda(facts, KNOWN, expected=expected)


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def kernel(major: int, **more: object) -> Object:
    made = Object(OPS, "sgl-kernel 0.3.21", (f"libcudart.so.{major}", f"libnvrtc.so.{major}"))
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def test_a_cuda_12_kernel_under_a_cuda_13_torch_is_the_wrong_wheel() -> None:
    missing = MissingLibrary("libnvrtc.so.12", OPS, other_majors=(f"{SITE}/nvidia/cu13/lib/libnvrtc.so.13",))
    finding = only(judge(environment(kernel(12, missing_libraries=(missing,)))))
    assert (finding.rule, finding.cause) == ("CUDA001", "cuda_major_mixed_between_wheels")
    assert "install sglang-kernel==0.4.5" in finding.fix[0]
    assert not any("nvidia-cuda-nvrtc-cu12" in fix for fix in finding.fix)


def test_a_variant_that_its_package_passes_over_asks_for_nothing() -> None:
    path = f"{SITE}/nccl/ep/lib/cu12/libnccl_ep.so"
    missing = MissingLibrary("libcudart.so.12", path, other_majors=(f"{SITE}/nvidia/cu13/lib/libcudart.so.13",))
    variants = (
        Object(path, "nccl4py 0.4.1", ("libcudart.so.12",), missing_libraries=(missing,)),
        Object(path.replace("cu12", "cu13"), "nccl4py 0.4.1", ("libcudart.so.13",)),
    )
    facts = environment(*variants)
    finding = only(cuda.judge_cuda(facts, knowledge(facts, SOURCE), expected=None))
    assert (finding.rule, finding.severity, finding.fix) == ("CUDA001", Severity.NOTE, ())


def test_only_cuda_12s_nvrtc_under_a_cuda_13_torch_and_kernel_asks_for_the_library() -> None:
    missing = MissingLibrary("libnvrtc.so.13", OPS, other_majors=(f"{SITE}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",))
    finding = only(judge(environment(kernel(13, missing_libraries=(missing,)))))
    assert finding.rule == "CUDA001"
    assert finding.fix == ("Install nvidia-cuda-nvrtc==13.0.*: torch and the object are both of CUDA 13",)


@pytest.mark.parametrize(
    ("missing", "first"),
    [
        ("_ZN3c103newEv", "Install torch==2.14.1, which exports all that sgl-kernel 0.3.21 needs"),
        ("_ZN3c107nowhereEv", "Install the build of sgl-kernel for CUDA 12"),  # no release is known to export it
    ],
)
def test_a_cuda_13_kernel_that_no_release_fits_under_a_cuda_12_torch_names_a_torch_that_was_checked(
    missing: str, first: str
) -> None:
    releases = (TorchRelease("2.10.0", "12.8", True), TorchRelease("2.14.1", "13.0", True))
    history = TorchHistory(releases, {"_ZN3c103newEv": 0b10})
    loaded = (Loaded("libcudart.so.13", "/x/libcudart.so.13", "runpath"),)
    symbols = (MissingSymbol(missing, missing),)
    found = kernel(13, cuda_libraries=loaded, torch_imports=(missing,), missing_symbols=symbols)
    facts = environment(found, version="2.10.0+cu128", release="12.8")
    finding = only(cuda.judge_cuda(facts, Knowledge(history, FixSource(history, ())), expected=None))
    assert finding.rule == "CUDA002"
    assert finding.fix[0].startswith(first)


def test_two_majors_in_one_process_weigh_more_for_an_extension_of_torch() -> None:
    loaded = (Loaded("libcudart.so.12", "/x/libcudart.so.12", "runpath"), Loaded("libcudart.so.13", "/y", "loaded"))
    plain = only(judge(environment(kernel(12, cuda_libraries=loaded))))
    extension = only(judge(environment(kernel(12, cuda_libraries=loaded, torch_imports=("_ZN3c10",)))))
    assert (plain.rule, plain.severity) == ("CUDA002", Severity.WARNING)
    assert extension.severity is Severity.ERROR
    assert extension.evidence["libraries"] == {"libcudart.so.12": "/x/libcudart.so.12"}


@pytest.mark.parametrize("soname", ["libcufft.so.12", "libcusolver.so.12", "libcusparse.so.12", "libcudnn.so.9"])
def test_a_soname_ending_in_12_need_not_be_cuda_12(soname: str) -> None:
    """The wheels of CUDA 13 ship these names (nvidia-cufft 12.0.0.61 and its siblings)."""
    facts = environment(Object(OPS, None, (soname,), cuda_libraries=(Loaded(soname, "/x", "runpath"),)))
    assert judge(facts) == []


def test_a_cpu_torch_is_named_before_any_library() -> None:
    found = Object(
        OPS, "sgl-kernel 0.3.21", ("libcudart.so.12",), missing_libraries=(MissingLibrary("libtorch_cuda.so", OPS),)
    )
    finding = only(judge(environment(found, version="2.9.1+cpu", release=None)))
    assert (finding.rule, finding.severity) == ("CUDA003", Severity.ERROR)
    assert finding.cause == "resolver_replaced_or_misselected_torch"
    assert "index cu128" in finding.fix[0]


def test_a_cpu_torch_alone_is_a_warning() -> None:
    finding = only(judge(environment(version="2.9.1+cpu", release=None, distributions=())))
    assert finding.severity is Severity.WARNING


def test_a_torch_of_another_cuda_than_the_stack() -> None:
    assert only(judge(environment(version="2.10.0", release="12.8"), "13.0")).rule == "CUDA004"
    assert judge(environment(), "13.0") == []


def test_a_torch_without_a_local_version_is_no_lie() -> None:
    """PyPI's torch 2.11.0 calls itself 2.11.0+cu130 inside (case c07)."""
    assert judge(environment()) == []


def test_metadata_of_one_torch_over_the_files_of_another_is_one() -> None:
    facts = environment(distributions=(Distribution("torch", "2.10.0", "t"),))
    finding = only(judge(facts))
    assert (finding.rule, finding.cause) == ("CUDA005", "version_string_is_not_evidence")


def test_a_label_that_says_cu130_over_cuda_12_objects() -> None:
    owner = Distribution("sgl-kernel", "0.3.21+cu130", "k")
    facts = environment(kernel(12, owner=str(owner)), distributions=(owner,))
    assert only(judge(facts)).evidence == {"label": 13, "needed": [12]}


@pytest.mark.parametrize(("loaded", "rules"), [(True, []), (None, []), (False, ["CUDA006"])])
def test_nvrtc_wants_the_builtins_of_its_own_release(loaded: bool | None, rules: list[str]) -> None:
    nvrtc = Nvrtc("libnvrtc.so.13", "/x/libnvrtc.so.13", "13.0", ("libnvrtc-builtins.so.13.1",), loaded)
    findings = judge(environment(nvrtc=(nvrtc,)))
    assert [f.rule for f in findings] == rules
    if findings:
        assert "will open libnvrtc-builtins.so.13.0" in findings[0].detail
        assert "nvidia-cuda-nvrtc==13.0.*" in findings[0].fix[0]


def test_builtins_that_lie_beside_nvrtc_are_still_not_found() -> None:
    """Seen with LD_DEBUG=libs: NVRTC 13.0 opens them by name alone and has no RUNPATH."""
    nvrtc = Nvrtc("libnvrtc.so.13", "/x/libnvrtc.so.13", "13.0", ("libnvrtc-builtins.so.13.0",), False)
    assert "Add /x to LD_LIBRARY_PATH" in only(judge(environment(nvrtc=(nvrtc,)))).fix[0]


@pytest.mark.parametrize(("winner", "severity"), [("cu12 2.29.3", Severity.ERROR), ("cu13 2.29.7", Severity.WARNING)])
def test_nccl_of_both_majors_in_one_folder(winner: str, severity: Severity) -> None:
    owners = ("nvidia-nccl-cu12 2.29.3", "nvidia-nccl-cu13 2.29.7")
    shared = SharedFile(f"{SITE}/nvidia/nccl/lib/libnccl.so.2", owners, f"nvidia-nccl-{winner}")
    finding = only(judge(environment(shared_files=(shared,))))
    assert (finding.rule, finding.severity) == ("CUDA007", severity)
    assert finding.fix[0].startswith("pip uninstall nvidia-nccl-cu12, then pip install --force-reinstall --no-deps")
    assert "nvidia-nccl-cu13==2.29.7" in finding.fix[0]


@pytest.mark.parametrize(
    ("cubin", "rules"), [("0.6.14", []), ("0.6.13", ["CUDA008"]), ("0.6.14+cu130", []), ("0.6.14+cu128", ["CUDA008"])]
)
def test_flashinfers_companions(cubin: str, rules: list[str]) -> None:
    facts = environment(
        distributions=(
            Distribution("flashinfer-python", "0.6.14", "f"),
            Distribution("flashinfer-jit-cache", cubin, "c"),
            Distribution("torch", "2.11.0", "t"),
        )
    )
    assert [f.rule for f in judge(facts)] == rules


@pytest.mark.parametrize(
    ("library", "compiled_with", "stale"),
    [
        ("0.6.4", "12.8", True),
        ("0.7.2", "12.8", True),
        ("0.6.4", "13.0", False),
        ("0.6.4", "12.9", True),
        ("0.7.2", "13.2", False),
    ],
)
def test_a_jit_cache_of_another_cuda_is_stale(library: str, compiled_with: str, stale: bool) -> None:
    facts = environment(
        distributions=(Distribution("flashinfer-python", library, "f"), Distribution("torch", "2.11.0", "t")),
        jit_caches=(JitCache("/h/.cache/flashinfer/x/120a", library, "120a", (compiled_with,), 3),),
    )
    assert [f.rule for f in judge(facts)] == (["CUDA009"] if stale else [])


def test_a_cache_of_another_flashinfer_is_not_used_and_not_reported() -> None:
    facts = environment(
        distributions=(Distribution("flashinfer-python", "0.7.2", "f"), Distribution("torch", "2.11.0", "t")),
        jit_caches=(JitCache("/h", "0.6.4", "120a", ("12.8",), 3),),
    )
    assert judge(facts) == []


def test_jit_caches_are_read_from_their_build_files(tmp_path: Path) -> None:
    module = tmp_path / ".cache/flashinfer/0.6.4/120a/cached_ops/norm"
    module.mkdir(parents=True)
    (module / "norm.so").touch()
    (module / "build.ninja").write_text(
        "ninja_required_version = 1.3\ncuda_home = /usr/local/cuda-12.8\nnvcc = $cuda_home/x\n"
    )
    (cache,) = find_jit_caches({"HOME": str(tmp_path)})
    assert (cache.library_version, cache.arch, cache.cuda, cache.objects) == ("0.6.4", "120a", ("12.8",), 1)
    assert find_jit_caches({"HOME": str(tmp_path), "FLASHINFER_WORKSPACE_BASE": "/nowhere"}) == ()
    assert find_jit_caches({}) == ()


@pytest.mark.parametrize(
    ("version", "releases"),
    [
        (json.dumps({"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}), ("13.0",)),
        (None, ("12.9",)),
        ("[" * 100_000, ("12.9",)),
        ('{"cuda": 13}', ("12.9",)),
    ],
    ids=["named", "gone", "brackets", "another-form"],
)
def test_the_toolkit_is_that_of_its_version_file_or_else_of_its_path(
    tmp_path: Path, version: str | None, releases: tuple[str, ...]
) -> None:
    home = tmp_path / "cuda-12.9"
    home.mkdir()
    if version is not None:
        (home / "version.json").write_text(version)
    module = tmp_path / ".cache/flashinfer/0.7.2/120a/cached_ops/norm"
    module.mkdir(parents=True)
    (module / "build.ninja").write_text(
        f"ninja_required_version = 1.3\ncuda_home = {home}\nnvcc = $cuda_home/bin/nvcc\n"
    )
    (module / "norm.so").touch()
    [found] = find_jit_caches({"HOME": str(tmp_path)})
    assert (found.library_version, found.cuda, found.objects) == ("0.7.2", releases, 1)


def test_leftover_wheels_of_the_other_major_are_a_note() -> None:
    facts = environment(
        distributions=(Distribution("nvidia-cublas-cu12", "12.8.4.1", "b"), Distribution("torch", "2.11.0", "t"))
    )
    finding = only(judge(facts))
    assert (finding.rule, finding.severity) == ("CUDA010", Severity.NOTE)


def test_a_loader_that_preloads_cuda_12_by_name() -> None:
    facts = environment(kernel_loader=KernelLoader("/p", runtimes=("libcudart.so.12",)))
    assert only(judge(facts)).rule == "CUDA011"
    assert judge(environment(kernel_loader=KernelLoader("/p", runtimes=("libcudart.so.12",), follows_torch=True))) == []


def test_one_torch_is_named_for_all_objects_of_a_kernel_that_are_opened() -> None:
    dropped, came = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", "_ZN3c104cuda29other"
    releases = tuple(TorchRelease(version, "12.8", True) for version in ("2.9.1", "2.10.0"))
    source = FixSource(TorchHistory(releases, {dropped: 0b01, came: 0b10}), ())
    folder, present = f"{SITE}/sgl_kernel", (f"{SITE}/nvidia/cu13/lib/libnvrtc.so.13",)
    objects = [
        Object(
            path,
            "sgl-kernel 0.3.21",
            ("libnvrtc.so.12",),
            missing_libraries=(MissingLibrary("libnvrtc.so.12", path, other_majors=present),),
            torch_imports=imports,
        )
        for path, imports in (
            (f"{folder}/flash_ops.abi3.so", ()),
            (f"{folder}/sm100/common_ops.abi3.so", (came,)),
            (f"{folder}/sm90/common_ops.abi3.so", (dropped,)),
            (f"{folder}/spatial_ops.abi3.so", ("_ZN3c1010TensorImplD1Ev",)),
        )
    ]
    loader = KernelLoader(folder, exact=((90, "sm90"),), default="sm100")
    facts = environment(*objects, kernel_loader=loader)
    findings = cuda.judge_cuda(facts, knowledge(facts, source, Gpu.parse("sm_90")))
    advice = {fix for f in findings if f.severity is Severity.ERROR for fix in f.fix if "torch==" in fix}
    assert len(findings) == 4
    assert advice == {
        "Install torch==2.9.1, which exports all that sgl-kernel 0.3.21 needs; PyPI's is built for CUDA 12, too"
    }
