"""SGLang's kernels can be imported beside torch."""

import _probe

_probe.run("import_sgl_kernel", lambda: _probe.import_beside_torch("sgl_kernel"))
