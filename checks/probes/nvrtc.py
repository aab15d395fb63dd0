"""NVRTC really compiles: needs no GPU, and finds a missing or mismatched builtins sibling, which loading does not."""

import ctypes

import _probe

KERNEL = b'extern "C" __global__ void axpy(float a, float *x, float *y) { y[threadIdx.x] += a * x[threadIdx.x]; }'


def probe():
    try:
        import torch  # noqa: F401 - loads the wheel's libnvrtc by path, as it does for a server

        torch_loaded = True
    except ImportError:
        torch_loaded = False
    try:
        nvrtc = ctypes.CDLL("libnvrtc.so.13")
    except OSError as error:
        raise _probe.Fail(str(error)) from error
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    wanted = _probe.settings().get("gpu", "sm_120")
    sizes = {arch: compiled(nvrtc, arch) for arch in sorted({"sm_90a", "sm_120a", wanted})}
    return {
        "version": f"{major.value}.{minor.value}",
        "torch_loaded": torch_loaded,
        "mapped": _probe.mapped("libnvrtc")["libnvrtc"],
        "cubin_bytes": sizes,
    }


def compiled(nvrtc, arch):
    """Size in bytes of the cubin for one architecture."""
    program = ctypes.c_void_p()
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), KERNEL, b"axpy.cu", 0, None, None), "create")
    options = (ctypes.c_char_p * 1)((f"--gpu-architecture={arch}").encode())
    code = nvrtc.nvrtcCompileProgram(program, 1, options)
    if code:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value + 1)
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.value.decode(errors="replace").strip()
        raise _probe.Fail(f"{arch}: {text or error_string(nvrtc, code)}")
    size = ctypes.c_size_t()
    check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "cubin")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return size.value


def check(nvrtc, code, step):
    if code:
        raise _probe.Fail(f"{step}: {error_string(nvrtc, code)}")


def error_string(nvrtc, code):
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc.nvrtcGetErrorString(code).decode()


_probe.run("nvrtc", probe)
