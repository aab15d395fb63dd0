"""nvcc and ninja as FlashInfer's JIT will find them, and one file compiled for the target architecture.

The order is that of ``flashinfer/jit/cpp_ext.py``: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda.
"""

import os
import re
import shutil
import subprocess
import tempfile

import _probe

KERNEL = "__global__ void scale(float *x) { x[threadIdx.x] *= 2.0f; }\nint main() { scale<<<1, 32>>>(nullptr); }\n"


def probe():
    nvcc = find_nvcc()
    if nvcc is None:
        raise _probe.Fail("no nvcc: CUDA_HOME and CUDA_PATH are unset, none is on PATH or below /usr/local/cuda")
    banner = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60).stdout
    version = re.search(r"release (\d+\.\d+)", banner)
    wanted = _probe.settings().get("gpu", "sm_120")
    arch = wanted if wanted.endswith("a") or int(wanted[3:]) < 90 else wanted + "a"
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "scale.cu")
        with open(source, "w", encoding="ascii") as file:
            file.write(KERNEL)
        done = subprocess.run(
            [nvcc, f"-arch={arch}", "-cubin", "-o", source + "bin", source],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode:
            raise _probe.Fail(f"{nvcc} for {arch}: {(done.stderr or done.stdout).strip()[-600:]}")
        size = os.path.getsize(source + "bin")
    return {
        "nvcc": nvcc,
        "version": version.group(1) if version else None,
        "ninja": shutil.which("ninja"),
        "architecture": arch,
        "cubin_bytes": size,
    }


def find_nvcc():
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root:
            return os.path.join(root, "bin", "nvcc")
    found = shutil.which("nvcc")
    if found:
        return found
    usual = "/usr/local/cuda/bin/nvcc"
    return usual if os.path.exists(usual) else None


_probe.run("nvcc", probe)
