"""Which torch this is, and which CUDA libraries are really mapped once it is imported."""

import _probe


def probe():
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "git": torch.version.git_version,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "architectures": torch.cuda.get_arch_list(),
        "mapped": _probe.mapped("libnvrtc", "libcudart", "libcublas", "libcublasLt", "libnccl", "libcudnn"),
    }


_probe.run("torch_build", probe)
