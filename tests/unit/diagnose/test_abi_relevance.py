from __future__ import annotations

import pytest

from stack_builder.diagnose.abi import relevance
from stack_builder.diagnose.abi.fixes import FixSource
from stack_builder.diagnose.abi.history import TorchHistory
from stack_builder.diagnose.environment.facts import (
    Environment,
    KernelLoader,
    MissingLibrary,
    MissingSymbol,
    Object,
    Python,
    Torch,
)

KNOWN = relevance.Knowledge(TorchHistory((), {}), FixSource(TorchHistory((), {}), ()))
SITE = "/v/lib/python3.11/site-packages"


def environment(*objects: Object, loader: KernelLoader | None = None, import_error: str | None = None) -> Environment:
    return Environment(
        "x86_64",
        Python("3.11", "/v", (SITE,)),
        torch=Torch(f"{SITE}/torch", "2.14.1", "13.0", import_error=import_error),
        objects=objects,
        kernel_loader=loader,
    )


def faulty(name: str, soname: str = "libx.so.1", owner: str = "x 1", **more: object) -> Object:
    path = f"{SITE}/{name}"
    return Object(path, owner, missing_libraries=(MissingLibrary(soname, path),), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("torchcodec/libtorchcodec_core4.so", "torchcodec/libtorchcodec_core9.so"),
        ("libtorch_c_dlpack_addon_torch24-cpu.so", "libtorch_c_dlpack_addon_torch29-cpu.so"),
        ("torch_memory_saver_hook_mode_torch.abi3.so", "torch_memory_saver_hook_mode_torch_cu13.abi3.so"),
        ("nccl/ep/lib/cu12/libnccl_ep.so", "nccl/ep/lib/cu13/libnccl_ep.so"),
    ],
)
def test_variants_that_wheels_of_the_default_stack_carry_are_recognised(one: str, other: str) -> None:
    assert relevance.excused(environment(faulty(one), Object(f"{SITE}/{other}", "x 1"))) == {f"{SITE}/{one}"}


def test_torchs_own_libraries_are_no_variants_of_each_other() -> None:
    paths = [f"{SITE}/torch/lib/libtorch_{name}.so" for name in ("cpu", "cuda")]
    assert relevance.variant_of(paths[0]) != relevance.variant_of(paths[1])


def test_the_kernels_architecture_folders_are_chosen_between_not_tried() -> None:
    loader = KernelLoader(f"{SITE}/sgl_kernel", ((90, "sm90"),), "sm100")
    sound = Object(f"{SITE}/sgl_kernel/sm90/common_ops.abi3.so", "sglang-kernel 0.4.5")
    broken = faulty("sgl_kernel/sm100/common_ops.abi3.so", owner="sglang-kernel 0.4.5")
    assert relevance.excused(environment(broken, sound, loader=loader)) == frozenset()


def test_of_an_essential_package_one_variant_has_to_load() -> None:
    both = faulty("sgl_kernel/ops1.so", owner="sglang-kernel 1"), faulty("sgl_kernel/ops2.so", owner="sglang-kernel 1")
    assert relevance.excused(environment(*both)) == frozenset()


def test_a_decoder_without_its_system_library_is_one_feature() -> None:
    heic = faulty("torchcodec/libtorchcodec_heic.so", "libheif.so.1", "torchcodec 0.17.0", torch_imports=("torch_x",))
    image = Object(f"{SITE}/torchcodec/libtorchcodec_image.so", "torchcodec 0.17.0", torch_imports=("torch_x",))
    assert relevance.is_one_feature(environment(heic, image), heic)
    assert not relevance.is_one_feature(environment(heic), heic)
    cuda = faulty("torchcodec/a.so", "libcudart.so.12", "torchcodec 0.17.0", torch_imports=("torch_x",))
    assert not relevance.is_one_feature(environment(cuda, image), cuda)


@pytest.mark.parametrize(
    ("import_error", "lacks", "exported", "own"),
    [
        (None, None, True, True),  # out of scope, but torch is loaded: rule ABI014
        ("libcudart.so.13 is not found", "libtorch.so", True, False),  # torch has it, and could not be loaded
        ("libcudart.so.13 is not found", "libtorch.so", False, True),  # torch does not have it at all
        (None, "libnvrtc.so.12", False, True),  # another library is gone; torch's symbol is torch's matter
    ],
)
def test_a_symbol_of_torch_is_judged_by_what_torch_exports(
    import_error: str | None, lacks: str | None, exported: bool, own: bool
) -> None:
    symbol = MissingSymbol("_ZN3c103fooEv", "c10::foo()", out_of_scope="libc10.so" if exported else None)
    missing = () if lacks is None else (MissingLibrary(lacks, "x", on_disk=("y",)),)
    found = Object(f"{SITE}/x.so", "x 1", missing_libraries=missing, missing_symbols=(symbol,))
    assert relevance.is_own_fault(environment(found, import_error=import_error), found, symbol, KNOWN) is own


def test_a_library_that_is_gone_takes_its_symbols_along() -> None:
    found = faulty("x.so")
    assert not relevance.is_own_fault(environment(found), found, MissingSymbol("ibv_query_srq", "ibv_query_srq"), KNOWN)


def test_what_stops_torch_is_said_once() -> None:
    gone = MissingLibrary("libcudart.so.13", "x")
    numa = MissingLibrary("libnuma.so.1", "y")
    torch = MissingLibrary("libtorch.so", "y", on_disk=(f"{SITE}/torch/lib/libtorch.so",))
    extension = Object(f"{SITE}/torch/_C.cpython-311-x86_64-linux-gnu.so", "torch 2.14.1", missing_libraries=(gone,))
    kernel = Object(f"{SITE}/sgl_kernel/ops.so", "sglang-kernel 1", missing_libraries=(torch, gone, numa))
    stopped = environment(extension, kernel, import_error="libcudart.so.13 is not found")
    assert relevance.libraries_to_report(stopped, extension, KNOWN) == (gone,)
    assert relevance.libraries_to_report(stopped, kernel, KNOWN) == (numa,)
    assert relevance.libraries_to_report(environment(extension, kernel), kernel, KNOWN) == (torch, gone, numa)
