"""nvcc and ninja as FlashInfer's JIT will find them, and one file built by them for the target architecture.

``flashinfer/jit/cpp_ext.py`` takes nvcc from FLASHINFER_NVCC, else below CUDA_HOME, CUDA_PATH, the root of the nvcc on
PATH, or /usr/local/cuda, and runs whatever ``ninja`` is on PATH. One that is installed elsewhere is of no use to it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

import _probe

KERNEL = "__global__ void scale(float *x) { x[threadIdx.x] *= 2.0f; }\nvoid run(float *x) { scale<<<1, 32>>>(x); }\n"
LIMIT = 180  # seconds for the build; it takes 2 to 5 s on an idle machine
RULES = """\
ninja_required_version = 1.3
rule cuda_compile
  command = {nvcc} --generate-dependencies-with-compile -MF $out.d {flags} -c $in -o $out
  depfile = $out.d
  deps = gcc
build {output}: cuda_compile {source}
default {output}
"""


def probe():
    ninja = find_ninja()
    nvcc = find_nvcc()
    ninja_version = said(ninja, "ninja").strip()
    release = re.search(r"release (\d+\.\d+)", said(nvcc, "nvcc"))
    flags, architecture = compiler_flags(_probe.settings().get("gpu", "sm_120"))
    with tempfile.TemporaryDirectory() as folder:
        size = built(ninja, nvcc, flags, folder)
    return {
        "nvcc": nvcc,
        "version": release.group(1) if release else None,
        "ninja": ninja,
        "ninja_version": ninja_version,
        "architecture": architecture,
        "object_bytes": size,
    }


def find_ninja():
    found = shutil.which("ninja")
    if found is None:
        beside = os.path.join(os.path.dirname(sys.executable), "ninja")
        way = f"put {os.path.dirname(beside)} first on PATH" if os.path.exists(beside) else "install the ninja wheel"
        raise _probe.Fail(f"no ninja on PATH, where FlashInfer's JIT looks for it: {way}", cause="ninja_missing")
    return found


def find_nvcc():
    named = os.environ.get("FLASHINFER_NVCC")
    root = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    on_path = shutil.which("nvcc")
    found = named or (os.path.join(root, "bin", "nvcc") if root else on_path or "/usr/local/cuda/bin/nvcc")
    if shutil.which(found) is None:
        looked = "FLASHINFER_NVCC" if named else "CUDA_HOME" if root else "PATH and /usr/local/cuda"
        raise _probe.Fail(f"no nvcc at {found} (by {looked})", cause="nvcc_missing")
    return found


def said(program, name):
    """What ``--version`` says, of a program that may not run at all."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise _probe.Fail(f"{program} does not run: {error}", cause=f"{name}_broken") from error


def compiler_flags(gpu):
    """nvcc's flags, and the architecture with the suffix that FlashInfer compiles for from capability 9.0 on."""
    number = gpu[3:] if not gpu[3:].isdigit() or int(gpu[3:]) < 90 else gpu[3:] + "a"
    flags = ["--compiler-options=-fPIC", "-std=c++17", f"-gencode=arch=compute_{number},code=sm_{number}"]
    compiler = os.environ.get("CC")
    return (["-ccbin", compiler] if compiler else []) + flags, f"sm_{number}"


def built(ninja, nvcc, flags, folder):
    """Size in bytes of the object that ninja and nvcc build."""
    source, output, rules = (os.path.join(folder, name) for name in ("scale.cu", "scale.o", "build.ninja"))
    with open(source, "w", encoding="ascii") as file:
        file.write(KERNEL)
    with open(rules, "w", encoding="utf-8") as file:
        file.write(RULES.format(nvcc=nvcc, flags=" ".join(flags), output=output, source=source))
    # no session of its own: whoever ends the probe's ends the compiler with it
    child = subprocess.Popen([ninja, "-v", "-C", folder, "-f", rules], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        log = child.communicate(timeout=LIMIT)[0].decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        child.terminate()  # ninja then ends its compilers
        child.communicate()
        raise _probe.Fail(f"{ninja} and {nvcc} built nothing within {LIMIT} s", cause="jit_build_timeout") from None
    if child.returncode:
        raise _probe.Fail(f"{ninja} and {nvcc}: {log[-600:]}", cause="jit_build_failed")
    return os.path.getsize(output)


_probe.run("nvcc", probe)
