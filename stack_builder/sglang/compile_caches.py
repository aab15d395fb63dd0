"""Where a server keeps what it compiles: one variable for each library that has a cache of its own.

FlashInfer's has neither CUDA nor torch in its keys (``flashinfer/jit/env.py``), so two stacks that share it run each
other's objects. In a container all of them lie in the root user's home or /tmp by default and are lost with it: every
start would compile again. SGLang 0.5.23 gathers some of them itself, 0.5.17 and 0.5.9 none.
"""

from __future__ import annotations

from types import MappingProxyType

CACHES = MappingProxyType(
    {
        "CUDA_CACHE_PATH": "nv",  # the driver's, of PTX that it compiles
        "FLASHINFER_WORKSPACE_BASE": "",  # flashinfer/jit/env.py appends .cache/flashinfer itself
        "SGLANG_CACHE_DIR": "sglang",  # sglang/srt/environ.py: graphs of torch.compile, results of autotuning
        "SGLANG_DG_CACHE_DIR": "deep_gemm",  # sglang/srt/layers/deep_gemm_wrapper/compile_utils.py
        "SGLANG_JIT_CACHE_DIR": "sglang-jit",  # sglang/kernels/jit/utils/compile/cache.py, from 0.5.23
        "TILELANG_CACHE_DIR": "tilelang",  # tilelang/env.py
        "TORCHINDUCTOR_CACHE_DIR": "inductor",  # torch/_inductor/runtime/cache_dir_utils.py; otherwise below /tmp
        "TRITON_CACHE_DIR": "triton",  # triton/knobs.py
        "TVM_FFI_CACHE_DIR": "tvm-ffi",  # tvm_ffi/cpp/extension.py, and SGLang's own kernels until 0.5.17
    }
)
"""Folder below a stack's own, by variable."""


def compile_caches(folder: str) -> dict[str, str]:
    """The variables that keep everything a server compiles below one folder.

    Args:
        folder: absolute path as the server sees it; each stack needs its own.
    """
    return {variable: f"{folder}/{name}".rstrip("/") for variable, name in CACHES.items()}
