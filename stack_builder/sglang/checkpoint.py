"""A model folder: what its ``config.json`` and its weight headers say."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack_builder import jsontext
from stack_builder.errors import UsageError, first_line
from stack_builder.sglang import safetensors
from stack_builder.sglang.safetensors import DamagedCheckpointError, Tensor

MAX_CONFIG = 4 << 20  # bytes
MAX_MAP = 8 << 20  # bytes of a vocabulary map that are looked at: a million entries

# Where multimodal configurations keep that of their language model (sglang/srt/utils/hf_transformers_utils.py,
# get_hf_text_config).
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One model.

    Attributes:
        folder: where it is.
        architecture: first of ``architectures``; empty where there is none.
        config: ``config.json``.
        text: configuration of the language model inside; ``config`` itself for a plain language model.
        tensors: by name.
        damage: why the weights cannot be read, else None; then there are no tensors.
    """

    folder: Path
    architecture: str
    config: Mapping[str, object]
    text: Mapping[str, object]
    tensors: Mapping[str, Tensor] = field(repr=False)
    damage: str | None = None

    def number(self, *names: str) -> int | None:
        """The first of some integers that the configuration gives, language model first."""
        for name in names:
            for source in (self.text, self.config):
                value = source.get(name)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None

    def tensor(self, *endings: str) -> tuple[str, Tensor] | None:
        """The first tensor named so, or whose name ends in ``.`` and so."""
        for ending in endings:
            for name, tensor in self.tensors.items():
                if name == ending or name.endswith("." + ending):
                    return name, tensor
        return None

    @property
    def context_length(self) -> int:
        """Tokens, as ``get_context_length`` of ``sglang/srt/utils/hf_transformers_utils.py`` derives them."""
        scaling = self.text.get("rope_scaling")
        factor = 1.0
        if isinstance(scaling, dict):
            plain = "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
            given = scaling.get("factor", 1)
            factor = 1.0 if plain or not isinstance(given, int | float) else float(given)
        for name in ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings"):
            value = self.text.get(name)
            if isinstance(value, int):
                length = factor * value
                return int(length) if math.isfinite(length) else value
        return 2048

    @property
    def dtype(self) -> str | None:
        """``bfloat16`` and the like, as the configuration says."""
        for source in (self.text, self.config):
            for name in ("torch_dtype", "dtype"):
                value = source.get(name)
                if isinstance(value, str):
                    return value.removeprefix("torch.")
        return None


def locate(name: str) -> Path | None:
    """Give the folder that a user names as a model; None where it is a hub's name.

    What begins with ``/``, ``./``, ``../`` or ``~``, or is there, is taken for a path.

    Returns:
        an absolute path that holds a ``config.json``, or None.

    Raises:
        UsageError: a path that is no such folder. SGLang would take it for a hub's name.
    """
    path = Path(name).expanduser() if name.startswith("~") else Path(name)
    if not name.startswith(("/", "./", "../", "~")) and not path.exists():
        return None
    _configuration(path)
    return path.absolute()


def read(folder: Path) -> Checkpoint:
    """Read a model folder. Damaged weights are a fact, not a failure: they are named in ``damage``.

    Raises:
        UsageError: there is no ``config.json``, or it is not a JSON object.
    """
    path = _configuration(folder)
    if path.stat().st_size > MAX_CONFIG:
        raise UsageError(f"larger than {MAX_CONFIG} bytes", where=path)
    try:
        config = jsontext.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"not JSON: {first_line(error)}", where=path) from error
    if not isinstance(config, dict):
        raise UsageError("not a JSON object", where=path)
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    inner = (config[name] for name in _TEXT_CONFIGS if isinstance(config.get(name), dict))
    tensors: Mapping[str, Tensor] = {}
    damage = None
    try:
        tensors = safetensors.read(folder)
    except DamagedCheckpointError as error:
        damage = str(error)
    return Checkpoint(folder, architecture, config, next(inner, config), tensors, damage)


def _configuration(folder: Path) -> Path:
    path = folder / "config.json"
    if not path.is_file():
        what = "no config.json" if folder.is_dir() else "not a folder" if folder.exists() else "there is no such folder"
        raise UsageError(what, where=folder, fix="give the folder of a model")
    return path


def auxiliary_layers(config: Mapping[str, object]) -> tuple[int, ...] | None:
    """Target layers that a draft reads, as its configuration says; None for SGLang's default.

    Source: ``sglang/srt/model_executor/model_runner.py`` (0.5.9, ``eagle_config``).
    """
    eagle = config.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    if isinstance(ids, list) and ids and all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        return tuple(ids)
    return None


def default_layers(layers: int) -> tuple[int, int, int]:
    """Layers that SGLang reads where a draft names none, counted as drafts count them.

    Source: ``set_eagle3_layers_to_capture`` of ``sglang/srt/models/llama.py``: it takes ``[2, L // 2, L - 3]`` as
    inputs of layers, and adds one to the ids of a draft, which count outputs.
    """
    return (1, layers // 2 - 1, layers - 4)


def read_map(tensor: Tensor) -> tuple[int, ...] | None:
    """The entries of a vocabulary map (``d2t``); None where it is not of integers or too long to look at."""
    code = {"I64": "q", "I32": "i"}.get(tensor.dtype)
    if code is None or len(tensor.shape) != 1 or tensor.end - tensor.start > MAX_MAP:
        return None
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        return struct.unpack(f"<{tensor.shape[0]}{code}", file.read(tensor.end - tensor.start))
