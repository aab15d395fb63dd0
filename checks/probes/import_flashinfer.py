"""FlashInfer can be imported beside torch."""

import _probe

_probe.run("import_flashinfer", lambda: _probe.import_beside_torch("flashinfer"))
