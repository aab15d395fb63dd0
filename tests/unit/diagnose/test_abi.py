from __future__ import annotations

import dataclasses

import pytest

from stack_builder.diagnose.abi import fixes as abi_fixes
from stack_builder.diagnose.abi import history as abi_history
from stack_builder.diagnose.abi import judge as abi
from stack_builder.diagnose.abi.history import KernelRelease, TorchHistory, TorchRelease
from stack_builder.diagnose.abi.relevance import Knowledge
from stack_builder.diagnose.environment.facts import (
    Distribution,
    Environment,
    Loaded,
    MissingLibrary,
    MissingSymbol,
    Object,
    Python,
    SharedFile,
    Torch,
)
from stack_builder.report import Finding, Severity

SITE = "/v/lib/python3.12/site-packages"
OPS = f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so"
CHECK_INT = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
CHECK_UNSIGNED = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
EVERYWHERE = "_ZN3c1010TensorImplD1Ev"

# Which release exports what, as nm -D of libc10_cuda.so in the PyPI wheels shows
HISTORY = TorchHistory(
    (
        TorchRelease("2.9.0", "12.8", True),
        TorchRelease("2.9.1", "12.8", True),
        TorchRelease("2.10.0", "12.8", True),
        TorchRelease("2.11.0", "13.0", True),
    ),
    {CHECK_INT: 0b0011, CHECK_UNSIGNED: 0b1100, "torch_call_dispatcher": 0b1100},
)
KERNELS = (
    KernelRelease("sglang-kernel", "0.4.3", 13, ("2.11.0",)),
    KernelRelease("sgl-kernel", "0.3.21", 12, ("2.9.0", "2.9.1")),
)
KNOWN = Knowledge(HISTORY, abi_fixes.FixSource(HISTORY, KERNELS))


def environment(
    *objects: Object, torch: str | None = "2.10.0", cuda: str | None = "12.8", **more: object
) -> Environment:
    facts = Environment(
        "x86_64",
        Python("3.12", "/v", (SITE,)),
        distributions=(Distribution("sgl-kernel", "0.3.21", f"{SITE}/sgl_kernel-0.3.21.dist-info"),),
        torch=Torch(f"{SITE}/torch", torch, cuda, cxx11_abi=True) if torch else None,
        objects=objects,
    )
    return dataclasses.replace(facts, **more)  # type: ignore[arg-type]


def kernel(*missing: str, imports: tuple[str, ...] = (), **more: object) -> Object:
    symbols = tuple(MissingSymbol(name, name) for name in missing)
    made = Object(
        OPS,
        "sgl-kernel 0.3.21",
        ("libtorch_cuda.so", "libcudart.so.12"),
        missing_symbols=symbols,
        torch_imports=(*imports, *missing),
    )
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_symbol_that_torch_dropped_names_the_releases_that_fit_and_tested_fixes() -> None:
    finding = only(abi.judge_abi(environment(kernel(CHECK_INT, imports=(EVERYWHERE,))), KNOWN))
    assert (finding.rule, finding.cause, finding.object) == ("ABI001", "torch_minor_abi_mismatch", OPS)
    assert finding.evidence["fitting_torch"] == ["2.9.0", "2.9.1"]
    assert "Of 2 symbols" in finding.detail
    assert "Last exported by torch 2.9.1" in finding.detail
    # no recorded kernel fits 2.10.0, so the only tested way is back to 2.9.1, which is a CUDA 12 build as the kernel is
    assert finding.fix == ("Install torch==2.9.1, which exports all that sgl-kernel 0.3.21 needs",)


def test_a_symbol_that_torch_does_not_have_yet_is_told_from_one_it_dropped() -> None:
    finding = only(abi.judge_abi(environment(kernel(CHECK_UNSIGNED), torch="2.9.1"), KNOWN))
    assert "First exported by torch 2.10.0" in finding.detail
    assert "Last exported" not in finding.detail


def test_the_fix_that_sglang_requires_comes_first() -> None:
    sglang = Distribution("sglang", "0.5.9", "x", requires=("torch==2.9.1", "sgl-kernel==0.3.21"))
    facts = environment(kernel(CHECK_INT), torch="2.11.0", cuda="13.0")
    facts = dataclasses.replace(facts, distributions=(*facts.distributions, sglang))
    fixes = only(abi.judge_abi(facts, KNOWN)).fix
    assert fixes[0].startswith("Install torch==2.9.1, ")
    assert "which sglang 0.5.9 requires" in fixes[0]
    assert "install sglang-kernel==0.4.3" in fixes[1]
    assert "so move sglang with it" in fixes[1]


def test_the_stack_that_keeps_the_installed_torch_is_offered_last() -> None:
    stacks = (
        abi_fixes.LockedSet("new", "2.14.1", "0.5.23", "sglang-kernel", "0.4.10"),
        abi_fixes.LockedSet("same-torch", "2.11.0", "0.5.17", "sglang-kernel", "0.4.5"),
    )
    known = Knowledge(HISTORY, abi_fixes.FixSource(HISTORY, KERNELS, stacks))
    fixes = only(abi.judge_abi(environment(kernel(CHECK_INT), torch="2.11.0", cuda="13.0"), known)).fix
    assert "stack same-torch has torch 2.11.0, sglang-kernel 0.4.5 and sglang 0.5.17" in fixes[-1]


def test_a_cuda_13_kernel_is_not_sent_to_a_cuda_12_torch_in_silence() -> None:
    found = kernel(CHECK_INT, needed=("libtorch_cuda.so", "libcudart.so.13"))
    (fix, *_) = only(abi.judge_abi(environment(found), KNOWN)).fix
    assert "take the cu13x build from PyTorch's index, as PyPI's is built for CUDA 12.8" in fix


def test_a_fix_suits_every_object_of_the_distribution() -> None:
    other = dataclasses.replace(kernel(imports=(CHECK_UNSIGNED,)), path=f"{SITE}/sgl_kernel/flash_ops.abi3.so")
    findings = abi.judge_abi(environment(kernel(CHECK_INT), other), KNOWN)
    assert findings[0].evidence["fitting_torch"] == ["2.9.0", "2.9.1"]
    assert not any("torch==" in fix for fix in findings[0].fix)


def test_contradicting_imports_fit_no_release_and_no_version_is_named() -> None:
    finding = only(abi.judge_abi(environment(kernel(CHECK_INT, imports=(CHECK_UNSIGNED,))), KNOWN))
    assert finding.evidence["fitting_torch"] == []
    assert finding.fix == ("No release is known that fits: build sgl-kernel from source against torch 2.10.0",)


def test_a_torch_name_that_no_release_has_is_said_to_be_unknown() -> None:
    finding = only(abi.judge_abi(environment(kernel("_ZN3c103newEv")), KNOWN))
    assert finding.rule == "ABI001"
    assert "No recorded torch release exports all of them" in finding.detail


def test_an_unrecorded_torch_claims_nothing_about_symbols_outside_the_table() -> None:
    finding = only(abi.judge_abi(environment(kernel("_ZN3c103newEv"), torch="2.99.0"), KNOWN))
    assert "No recorded torch release" not in finding.detail


@pytest.mark.parametrize(
    ("symbol", "rule", "cause"),
    [
        # its own function in the global namespace, whatever it takes: vllm issue 29030
        (
            "_Z20cutlass_moe_mm_sm100RN2at6TensorERKS0_S3_S3_S3_S3_S3_S3_S3_S3_bb",
            "ABI006",
            "extension_built_without_arch_or_symbol",
        ),
        # the driver's: sglang issue 8432
        ("cuGreenCtxDestroy", "ABI013", "driver_older_than_needed"),
        # std::string in the layout before C++11: flash-attention issue 1717 the other way round
        ("_ZN3c105ErrorC2ENS_14SourceLocationESs", "ABI007", "cxx11_abi_flag_mismatch"),
        ("_ZNK3c106SymInt6sym_neERKS0_", "ABI001", "torch_minor_abi_mismatch"),
    ],
)
def test_a_missing_symbol_is_laid_at_the_right_door(symbol: str, rule: str, cause: str) -> None:
    finding = only(abi.judge_abi(environment(kernel(symbol)), KNOWN))
    assert (finding.rule, finding.cause) == (rule, cause)


def test_a_c11_string_under_an_old_layout_torch_is_the_flag() -> None:
    name = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
    facts = environment(kernel(name), torch="2.6.0")
    assert facts.torch is not None
    facts = dataclasses.replace(facts, torch=dataclasses.replace(facts.torch, cxx11_abi=False))
    assert only(abi.judge_abi(facts, KNOWN)).rule == "ABI007"


def test_an_older_nccl_is_named_with_the_file_that_won() -> None:
    found = Object(
        f"{SITE}/torch/lib/libtorch_cuda.so",
        "torch 2.11.0",
        ("libnccl.so.2",),
        missing_symbols=(MissingSymbol("ncclCommWindowRegister", "ncclCommWindowRegister"),),
        cuda_libraries=(Loaded("libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2", "cache"),),
    )
    finding = only(abi.judge_abi(environment(found), KNOWN))
    assert (finding.rule, finding.cause) == ("ABI005", "wrong_library_wins_in_loader_path")
    assert "libnccl.so.2 (/usr/lib/x86_64-linux-gnu/libnccl.so.2) lacks ncclCommWindowRegister" in finding.detail


def test_versions_of_the_system_and_of_other_libraries_are_different_findings() -> None:
    found = kernel(missing_versions=("libstdc++.so.6: GLIBCXX_3.4.32", "libnvJitLink.so.12: libnvJitLink.so.12"))
    assert [f.rule for f in abi.judge_abi(environment(found), KNOWN)] == ["ABI004", "ABI005"]


def test_a_library_that_is_nowhere_names_the_wheel_for_torchs_own_cuda() -> None:
    found = kernel(missing_libraries=(MissingLibrary("libnvrtc.so.13", OPS),))
    finding = only(abi.judge_abi(environment(found, torch="2.11.0+cu130", cuda="13.0"), KNOWN))
    assert (finding.rule, finding.cause) == ("ABI002", "library_missing")
    assert finding.fix == ("Install nvidia-cuda-nvrtc==13.0.*, which ships libnvrtc.so.13",)


def test_a_library_of_cuda_13_under_a_cuda_12_torch_is_no_library_to_install() -> None:
    """There is no nvidia-cuda-nvrtc of CUDA 12: on PyPI that name begins with 13.0."""
    missing = (MissingLibrary("libnvrtc.so.13", OPS), MissingLibrary("libnuma.so.1", OPS))
    facts = environment(kernel(missing_libraries=missing), torch="2.9.1+cu128", cuda="12.8")
    finding = only(abi.judge_abi(facts, KNOWN))
    assert (finding.rule, finding.cause) == ("ABI002", "cuda_major_mixed_between_wheels")
    assert not any("nvidia-cuda-nvrtc" in fix for fix in finding.fix)
    assert "sgl-kernel==0.3.21" in finding.fix[0]
    assert "libnuma.so.1" in finding.fix[-1]


def test_a_library_off_the_search_path_is_to_be_made_visible_not_installed() -> None:
    lies = "/usr/local/cuda-13.0/lib64/libnvrtc.so.13"
    found = kernel(missing_libraries=(MissingLibrary("libnvrtc.so.13", OPS, on_disk=(lies,)),))
    finding = only(abi.judge_abi(environment(found), KNOWN))
    assert finding.rule == "ABI003"
    assert "ldconfig" in finding.fix[0]
    assert "/usr/local/cuda-13.0/lib64" in finding.fix[0]


def test_a_module_for_another_python_is_found_by_its_name() -> None:
    found = Object(f"{SITE}/sgl_kernel/infllm_ops.cpython-310-x86_64-linux-gnu.so", "sglang-kernel 0.4.10")
    finding = only(abi.judge_abi(environment(found), KNOWN))
    assert (finding.rule, finding.severity) == ("ABI008", Severity.WARNING)
    assert "Python 3.10" in finding.detail


def test_the_stable_abi_gives_a_floor_in_place_of_a_list() -> None:
    found = Object(
        "/v/x.so", None, ("libtorch.so",), torch_imports=("torch_call_dispatcher", "aoti_torch_get_data_ptr")
    )
    finding = only(abi.judge_abi(environment(found, torch="2.11.0"), KNOWN))
    assert (finding.rule, finding.severity) == ("ABI012", Severity.NOTE)
    assert finding.evidence == {"minimum_torch": "2.10.0"}


def test_the_renamed_kernel_installed_twice_keeps_the_one_that_sglang_requires() -> None:
    owners = ("sgl-kernel 0.3.21", "sglang-kernel 0.4.3")
    facts = environment(
        distributions=(
            Distribution("sgl-kernel", "0.3.21", "a"),
            Distribution("sglang-kernel", "0.4.3", "b"),
            Distribution("sglang", "0.5.9", "c", requires=("sgl-kernel==0.3.21",)),
        ),
        shared_files=tuple(
            SharedFile(f"{SITE}/sgl_kernel/{name}", owners, "sglang-kernel 0.4.3")
            for name in ("__init__.py", "gemm.py")
        ),
    )
    finding = only(abi.judge_abi(facts, KNOWN))
    assert (finding.rule, finding.cause, finding.object) == (
        "ABI009",
        "sibling_wheel_version_skew",
        f"{SITE}/sgl_kernel",
    )
    assert "there is sglang-kernel 0.4.3's" in finding.detail
    assert finding.fix == ("pip uninstall sgl-kernel sglang-kernel, then install sgl-kernel==0.3.21 again",)


def test_a_stray_file_of_two_wheels_is_a_note() -> None:
    """flashinfer-python 0.7.2 and torch-c-dlpack-ext 0.1.5 both ship a build_backend.py."""
    owners = ("flashinfer-python 0.7.2", "torch-c-dlpack-ext 0.1.5")
    finding = only(
        abi.judge_abi(environment(shared_files=(SharedFile(f"{SITE}/build_backend.py", owners, owners[0]),)), KNOWN)
    )
    assert (finding.rule, finding.severity) == ("ABI009", Severity.NOTE)


def test_an_alternative_that_the_gpu_never_opens_weighs_nothing() -> None:
    known = dataclasses.replace(KNOWN, not_loaded=frozenset({OPS}))
    finding = only(abi.judge_abi(environment(kernel(CHECK_INT)), known))
    assert (finding.rule, finding.severity) == ("ABI001", Severity.NOTE)


def test_what_shipped_is_what_nm_shows_of_the_wheels() -> None:
    """Recorded with binutils nm -D over torch's libraries of the PyPI wheels, x86_64."""
    history = abi_history.torch_history()
    assert [r.version for r in history.releases][:2] == ["2.6.0", "2.7.0"]
    assert history.exporters(CHECK_INT, "2.10.0", exported=False) == (
        "2.6.0", "2.7.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1",
    )  # fmt: skip
    assert history.exporters("_ZN3c1013MessageLoggerC1EPKciib", "2.11.0", exported=False) == ("2.10.0",)
    assert [r.version for r in history.releases if not r.cxx11_abi] == ["2.6.0"]
    assert {r.version: r.cuda for r in history.releases}["2.11.0"] == "13.0"


def test_a_table_that_contradicts_the_torch_at_hand_says_nothing() -> None:
    assert HISTORY.exporters(CHECK_INT, "2.9.1+local", exported=False) is None
    assert HISTORY.exporters(EVERYWHERE, "2.11.0+cu130", exported=True) == ("2.9.0", "2.9.1", "2.10.0", "2.11.0")


def test_the_tables_are_written_as_they_are_read(tmp_path: object) -> None:
    path = tmp_path / "torch.json.gz"  # type: ignore[operator]
    path.write_bytes(abi_history.dump_torch(HISTORY))
    assert abi_history.torch_history(path) == HISTORY
    assert abi_history.dump_torch(HISTORY) == path.read_bytes()
    kernels = tmp_path / "kernels.json"  # type: ignore[operator]
    kernels.write_text(abi_history.dump_kernels(KERNELS))
    assert abi_history.kernel_releases(kernels) == KERNELS


def test_an_object_that_cannot_be_read_is_named_and_nothing_else_is_said_of_it() -> None:
    damaged = Object(f"{SITE}/demo/x.so", "demo 1", unread="its dynamic section lies beyond the file")
    (finding,) = abi.judge_abi(environment(damaged), KNOWN)
    assert finding.rule == "ABI011"
    assert finding.detail.startswith("Its dynamic section lies beyond the file. ")
