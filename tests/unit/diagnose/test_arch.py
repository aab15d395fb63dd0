from __future__ import annotations

import pytest

from stack_builder.diagnose import arch
from stack_builder.diagnose.environment.facts import DeviceCode, Environment, KernelLoader, Python
from stack_builder.diagnose.environment.kernel_loader import read_kernel_loader
from stack_builder.report import Severity
from stack_builder.stack.gpu import Gpu

SITE = "/v/lib/python3.12/site-packages"
PYTHON = Python("3.12", "/v", (SITE,))
# cuobjdump --list-elf / --list-ptx of sgl-kernel 0.3.21 from PyPI
COMMON = DeviceCode(
    f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so",
    "sgl-kernel 0.3.21",
    ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a"),
)
FLASH = DeviceCode(f"{SITE}/sgl_kernel/flash_ops.abi3.so", "sgl-kernel 0.3.21", ("sm_80", "sm_86", "sm_90a"))
FLASHMLA = DeviceCode(f"{SITE}/sgl_kernel/flashmla_ops.abi3.so", "sgl-kernel 0.3.21", ("sm_90a", "sm_100a"))


@pytest.mark.parametrize(
    ("target", "gpu", "expected"),
    [
        # CUDA C++ Programming Guide: binary compatibility holds within a major, from a minor to later ones
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_90", "sm_100", False),
        ("sm_120", "sm_121", True),
        # architecture-specific: nowhere else
        ("sm_90a", "sm_90", True),
        ("sm_120a", "sm_121", False),
        # family-specific: the family, from its minor upwards
        ("sm_120f", "sm_121", True),
        ("sm_100f", "sm_103", True),
        ("sm_103f", "sm_100", False),
        ("sm_100f", "sm_120", False),
    ],
)
def test_machine_code_runs_where_the_programming_guide_says(target: str, gpu: str, expected: bool) -> None:
    assert arch.runs(target, Gpu.parse(gpu)) is expected


@pytest.mark.parametrize(
    ("target", "gpu", "expected"),
    [
        ("compute_80", "sm_120", True),
        ("compute_120", "sm_90", False),
        ("compute_90a", "sm_120", False),
        ("compute_120a", "sm_120", True),
        ("compute_120f", "sm_121", True),
        ("compute_100f", "sm_120", False),
    ],
)
def test_ptx_compiles_forward_unless_it_is_specific(target: str, gpu: str, expected: bool) -> None:
    assert arch.compiles(target, Gpu.parse(gpu)) is expected


def test_sgl_kernel_0_3_21_on_sm_120_names_the_features_that_are_absent_and_the_backends_to_use() -> None:
    findings = arch.judge_arch(
        Environment("x86_64", PYTHON, device_code=(COMMON, FLASH, FLASHMLA)), Gpu.parse("sm_120")
    )
    assert [(f.rule, f.object, f.severity) for f in findings] == [
        ("ARCH002", FLASH.path, Severity.NOTE),
        ("ARCH002", FLASHMLA.path, Severity.NOTE),
    ]
    assert "sm_80, sm_86, sm_90a" in findings[0].detail
    assert "fa3" in findings[0].title
    assert "--attention-backend flashinfer or triton" in findings[0].fix[0]
    assert "sm_90a, sm_100a" in findings[1].detail
    assert "flashmla" in findings[1].title


def test_common_operators_without_code_for_the_gpu_are_an_error() -> None:
    (finding,) = arch.judge_arch(Environment("x86_64", PYTHON, device_code=(COMMON,)), Gpu.parse("sm_121"))
    assert (finding.rule, finding.severity) == ("ARCH001", Severity.ERROR)
    assert finding.cause == "no_code_for_this_arch_in_binary"


def test_ptx_alone_is_a_note() -> None:
    code = DeviceCode("/v/x.so", None, ("sm_80",), ("compute_80",))
    (finding,) = arch.judge_arch(Environment("x86_64", PYTHON, device_code=(code,)), Gpu.parse("sm_120"))
    assert (finding.rule, finding.severity) == ("ARCH003", Severity.NOTE)


LOADER = b"""
def _load_architecture_specific_ops():
    compute_capability = _get_compute_capability()
    if compute_capability == 90:
        ops_subdir = "sm90"
        variant_name = "Hopper"
    elif compute_capability is not None:
        ops_subdir = "sm100"
    else:
        ops_subdir = "sm100"

def _preload_cuda_library():
    '''Preload libcudart.so.12, which is often not found'''
    candidate = base / f"libcudart.so.{lib_version}"
"""


def test_the_kernel_loader_is_read_as_it_chooses() -> None:
    loader = read_kernel_loader(LOADER, "/p")
    assert [loader.chosen(c) for c in (80, 90, 100, 120)] == ["sm100", "sm90", "sm100", "sm100"]
    assert loader.follows_torch
    assert loader.runtimes == ()


def test_a_loader_with_a_fixed_runtime_is_told_apart() -> None:
    loader = read_kernel_loader(b'def f():\n    candidate = base / "libcudart.so.12"\n', "/p")
    assert (loader.runtimes, loader.follows_torch, loader.default) == (("libcudart.so.12",), False, None)


@pytest.mark.parametrize("source", [b"def f(:", b"\x00", b"", b"(" * 5000])
def test_a_loader_that_does_not_parse_has_no_folders(source: bytes) -> None:
    assert read_kernel_loader(source, "/p") == KernelLoader("/p")


def test_the_alternative_that_the_gpu_does_not_load_is_left_out() -> None:
    hopper = DeviceCode(f"{SITE}/sgl_kernel/sm90/common_ops.abi3.so", "sgl-kernel 0.3.21", ("sm_90a",))
    environment = Environment(
        "x86_64",
        PYTHON,
        device_code=(COMMON, hopper),
        kernel_loader=KernelLoader(f"{SITE}/sgl_kernel", ((90, "sm90"),), "sm100"),
    )
    assert arch.judge_arch(environment, Gpu.parse("sm_120")) == []
    assert arch.not_loaded(environment, Gpu.parse("sm_90")) == {COMMON.path}


def test_a_fat_binary_that_cannot_be_walked_is_named_and_not_judged() -> None:
    damaged = Environment("x86_64", PYTHON, device_code=(DeviceCode("/v/x.so", "demo 1", (), (), "cut off"),))
    (finding,) = arch.judge_unread(damaged)
    assert (finding.rule, finding.object, finding.detail) == ("ARCH004", "/v/x.so", "Cut off.")
    assert arch.judge_arch(damaged, Gpu.parse("sm_120")) == []
