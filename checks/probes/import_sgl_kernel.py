"""SGLang's kernels can be imported beside torch."""

import _probe


def probe():
    _probe.import_torch()
    try:
        import sgl_kernel
    except ImportError as error:
        if "libcuda.so.1" in str(error):
            raise _probe.Skip(f"needs the driver's libcuda.so.1: {error}") from error
        raise
    return {"file": sgl_kernel.__file__, "version": getattr(sgl_kernel, "__version__", None)}


_probe.run("import_sgl_kernel", probe)
