"""Oracle: what SGLang's own adaptive speculation makes of a configuration, at every batch size.

Called as ``python real_adaptive.py SITE_PACKAGES CONFIG INITIAL_STEPS GRAPH_BATCHES``, the last as JSON. Prints the
candidate steps, and for each batch size the steps that it runs with, whether every draft is accepted or none; or the
error with which the server would not start.
"""

import importlib.util
import json
import sys
from pathlib import Path

from stand_ins import Finder


def main():
    site, config, initial, graphs = sys.argv[1:]
    sys.meta_path.insert(0, Finder(lambda name: name.split(".")[0] == "sglang"))
    place = Path(site) / "sglang" / "srt" / "speculative" / "adaptive_spec_params.py"
    spec = importlib.util.spec_from_file_location("adaptive_spec_params", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        told = {"candidates": module.resolve_candidate_steps_from_config(config)}
        told["used"] = used(module, config, int(initial), json.loads(graphs))
    except ValueError as error:
        told = {"error": str(error)}
    json.dump(told, sys.stdout)


def used(module, config, initial, graphs):
    """Steps by batch size, of which each lasts longer than the warm-up and the interval between two looks."""
    found = {}
    for accepted in (0, 1):
        params = module.AdaptiveSpeculativeParams(initial_steps=initial, cfg_path=config)
        if graphs:
            params.set_cuda_graph_bs(graphs)
        for batch in range(1, 257):
            for _ in range(16):
                steps = params.get_steps_for_batch(batch)
                found.setdefault(batch, set()).add(steps)
                params.on_verify_complete([accepted * steps] * batch, batch)
    return {batch: sorted(steps) for batch, steps in found.items()}


main()
