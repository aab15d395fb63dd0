"""Variants of a constructed pair: drafts and targets that are wrong in one way each.

python models.py PAIR OUT       PAIR holds target/ and draft/ with real acceptance
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


def variant(source: Path, target: Path, change: Callable[[dict[str, object], Tensors], None]) -> None:
    """Copy a model folder with its configuration and tensors changed."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    weights = source / "model.safetensors"
    tensors = load_file(weights) if weights.exists() else {}
    change(config, tensors)
    (target / "config.json").write_text(json.dumps(config, indent=1))
    if tensors:
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def random_head(_config: dict[str, object], tensors: Tensors) -> None:
    """A draft that proposes at random: nothing of it is accepted."""
    generator = torch.Generator().manual_seed(3)
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = torch.randn(head.shape, generator=generator).to(head.dtype)


def wrong_vocabulary(config: dict[str, object], _tensors: Tensors) -> None:
    """A draft whose configuration gives another draft vocabulary than its tensors."""
    config["draft_vocab_size"] = 1024


def without_hooks(config: dict[str, object], _tensors: Tensors) -> None:
    """A target whose class lacks the EAGLE-3 hooks in SGLang 0.5.17."""
    config["architectures"] = ["InternLM2ForCausalLM"]


def main() -> None:
    """Write the variants."""
    pair, out = Path(sys.argv[1]), Path(sys.argv[2])
    variant(pair / "draft", out / "draft-random", random_head)
    variant(pair / "draft", out / "draft-wrong-vocabulary", wrong_vocabulary)
    variant(pair / "target", out / "target-without-hooks", without_hooks)


main()
