"""FlashInfer can be imported beside torch."""

import _probe


def probe():
    _probe.import_torch()
    try:
        import flashinfer
    except ImportError as error:
        if "libcuda.so.1" in str(error):
            raise _probe.Skip(f"needs the driver's libcuda.so.1: {error}") from error
        raise
    return {"file": flashinfer.__file__, "version": getattr(flashinfer, "__version__", None)}


_probe.run("import_flashinfer", probe)
