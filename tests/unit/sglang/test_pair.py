"""Three model and draft pairs that fit, and more than a dozen that do not, each with one fault."""

from __future__ import annotations

import copy
import json
import math
import re
import struct
from pathlib import Path

import pytest

from stack_builder.diagnose.sglang import pair
from stack_builder.errors import UsageError
from stack_builder.sglang import checkpoint

H, V, DV, LAYERS = 64, 512, 128, 12
BITS = {"BF16": 16, "I64": 64, "BOOL": 8, "F16": 16, "I32": 32}
BASE = {
    "model_type": "llama",
    "hidden_size": H,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": V,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TARGET = {
    "config": {**BASE, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": LAYERS},
    "tensors": {
        "model.embed_tokens.weight": ("BF16", [V, H]),
        "lm_head.weight": ("BF16", [V, H]),
        "model.norm.weight": ("BF16", [H]),
    },
}
DRAFT = {
    "config": {
        **BASE,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DV,
    },
    "tensors": {
        "fc.weight": ("BF16", [H, 3 * H]),
        "midlayer.hidden_norm.weight": ("BF16", [H]),
        "midlayer.input_layernorm.weight": ("BF16", [H]),
        "midlayer.post_attention_layernorm.weight": ("BF16", [H]),
        "midlayer.self_attn.q_proj.weight": ("BF16", [H, 2 * H]),
        "midlayer.self_attn.k_proj.weight": ("BF16", [H // 2, 2 * H]),
        "midlayer.self_attn.v_proj.weight": ("BF16", [H // 2, 2 * H]),
        "midlayer.self_attn.o_proj.weight": ("BF16", [H, H]),
        "midlayer.mlp.gate_proj.weight": ("BF16", [H, H]),
        "midlayer.mlp.up_proj.weight": ("BF16", [H, H]),
        "midlayer.mlp.down_proj.weight": ("BF16", [H, H]),
        "norm.weight": ("BF16", [H]),
        "lm_head.weight": ("BF16", [DV, H]),
        "d2t": ("I64", [DV]),
        "t2d": ("BOOL", [V]),
    },
    "d2t": [2 * i for i in range(DV)],  # token i of the draft is token 3 i of the target
}


def write(folder: Path, model: dict) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model["config"]))
    header, data = {}, b""
    for name, (dtype, shape) in model["tensors"].items():
        size = math.prod(shape) * BITS[dtype] // 8
        body = bytes(size)
        if name == "d2t" and len(model["d2t"]) == shape[0]:
            body = struct.pack(f"<{shape[0]}{'q' if dtype == 'I64' else 'i'}", *model["d2t"])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += body[:size].ljust(size, b"\0")
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + data
    (folder / "model.safetensors").write_bytes(content[: model.get("cut")])
    return folder


@pytest.fixture
def judged(make_tree, tmp_path):
    """Judge a pair that a function has altered: ids of the findings, and the findings."""

    def run(alter, *, ranks=1, changed=None):
        target, draft = copy.deepcopy(TARGET), copy.deepcopy(DRAFT)
        alter(target, draft)
        folders = write(tmp_path / "target", target), write(tmp_path / "draft", draft)
        findings, _ = pair.judge_model(make_tree(changed or {}), *folders, tensor_parallel=ranks)
        return {f.rule for f in findings}, findings

    return run


@pytest.mark.parametrize(
    ("asked", "allowed", "severities"),
    [(4096, False, []), (4097, False, ["error"]), (100000, False, ["error"]), (100000, True, ["warning"])],
)
def test_a_context_longer_than_the_models(tmp_path, asked, allowed, severities):
    target = checkpoint.read(write(tmp_path / "target", TARGET))
    found = pair.judge_context(target, asked, allowed=allowed)
    assert [(finding.rule, finding.severity) for finding in found] == [("SGL057", one) for one in severities]


def shared_head(target, draft):
    draft["config"]["draft_vocab_size"] = None
    for name in ("lm_head.weight", "d2t", "t2d"):
        del draft["tensors"][name]


def wrapped_text_model(target, draft):
    inner = {k: v for k, v in target["config"].items() if k != "architectures"}
    target["config"] = {"architectures": ["LlamaForCausalLM"], "text_config": inner}
    target["tensors"] = {f"language_model.{name}": t for name, t in target["tensors"].items()}


@pytest.mark.parametrize("alter", [lambda target, draft: None, shared_head, wrapped_text_model])
def test_pairs_that_fit(judged, alter):
    assert judged(alter, ranks=2) == (set(), [])


def config(which, **changes):
    def alter(target, draft):
        (target if which == "target" else draft)["config"].update(changes)

    return alter


def tensor(which, name, value):
    def alter(target, draft):
        tensors = (target if which == "target" else draft)["tensors"]
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value

    return alter


def mapped(entries):
    def alter(target, draft):
        draft["d2t"] = entries

    return alter


def without(which, key):
    def alter(target, draft):
        del (target if which == "target" else draft)["config"][key]

    return alter


def cut(target, draft):
    draft["cut"] = -40


def ids(*layers):
    return config("draft", eagle_config={"eagle_aux_hidden_state_layer_ids": list(layers)})


FAULTS = [
    (config("target", architectures=["Wrapper"]), "SGL042", "stackb patch contract Wrapper"),
    (config("target", architectures=["Plain"]), "SGL042", "newer|release"),
    (config("target", architectures=["NoSuchModel"]), "SGL041", "NoSuchModel"),
    (config("draft", architectures=["LlamaForCausalLM"]), "SGL043", "set_embed"),
    (config("draft", hidden_size=32), "SGL044", "64.*32"),
    (config("draft", vocab_size=500), "SGL046", "512 tokens.*500"),
    (without("draft", "draft_vocab_size"), "SGL056", "draft_vocab_size"),
    (tensor("draft", "d2t", None), "SGL045", "no d2t"),
    (tensor("draft", "d2t", ("I64", [DV - 1])), "SGL045", r"shape \[127\]"),
    (tensor("draft", "d2t", ("BF16", [DV])), "SGL045", "type BF16"),
    (mapped([V] * DV), "SGL045", "128 of 128 entries"),
    (mapped([-i for i in range(DV)]), "SGL045", "127 entries.*twice"),
    (tensor("draft", "lm_head.weight", None), "SGL047", "no lm_head.weight"),
    (tensor("draft", "lm_head.weight", ("BF16", [DV, H + 1])), "SGL047", r"\[128, 65\]"),
    (tensor("target", "model.embed_tokens.weight", None), "SGL048", "embed_tokens"),
    (tensor("draft", "fc.weight", ("BF16", [H, 2 * H])), "SGL049", r"\[64, 128\].*\[64, 192\]"),
    (tensor("draft", "midlayer.self_attn.o_proj.weight", None), "SGL055", "o_proj"),
    (ids(1, 5, 12), "SGL049", r"\[12\] are no layers"),
    (ids(1, 5, 7), "SGL050", r"\[1, 5, 7\].*\[1, 5, 8\]"),
    (config("target", num_hidden_layers=5), "SGL049", r"\[1, 1, 1\] names one twice"),
    (config("draft", num_hidden_layers=2), "SGL051", "2 layers"),
    (config("draft", torch_dtype="float32"), "SGL052", "bfloat16.*float16"),
    (config("draft", max_position_embeddings=2048), "SGL053", "2048 tokens.*4096"),
    (cut, "SGL040", "ends at byte"),
]


@pytest.mark.parametrize(("alter", "rule", "words"), FAULTS)
def test_each_fault_is_named(judged, alter, rule, words):
    rules, findings = judged(alter)
    assert rule in rules
    (found,) = [f for f in findings if f.rule == rule]
    assert re.search(words, f"{found.detail} {' '.join(found.fix)}")
    extra = rules - {rule}
    assert extra <= {"SGL055", "SGL047", "SGL045", "SGL049"}, extra


def test_heads_and_ranks(judged):
    _, findings = judged(lambda target, draft: draft["config"].update(num_attention_heads=6), ranks=4)
    (found,) = [f for f in findings if f.rule == "SGL054"]
    assert found.detail == "6 attention heads over 4 GPUs"
    assert found.object is not None
    assert found.object.endswith("draft")


def test_a_release_without_the_traps_takes_other_layers_and_depths(judged):
    changed = {
        "sglang/srt/model_executor/cuda_graph_runner.py": "def f(model_runner):\n"
        "    if model_runner.eagle_use_aux_hidden_state:\n"
        "        model_runner.model.set_eagle3_layers_to_capture(model_runner.ids)\n",
        "sglang/srt/models/llama_eagle3.py": "from sglang.srt.models.llama import LlamaForCausalLM\n"
        "class LlamaForCausalLMEagle3(LlamaForCausalLM):\n"
        "    def __init__(self):\n        self.hot_token_id = None\n"
        "    def set_embed(self, embed): ...\n"
        "EntryClass = LlamaForCausalLMEagle3\n",
    }

    def alter(target, draft):
        ids(0, 3, 5, 9)(target, draft)
        draft["config"]["num_hidden_layers"] = 2
        draft["tensors"]["fc.weight"] = ("BF16", [H, 4 * H])
        for name in [n for n in draft["tensors"] if n.startswith("midlayer.")]:
            draft["tensors"][name.replace("midlayer", "layers.1")] = draft["tensors"][name]

    assert judged(alter, changed=changed)[0] == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no config.json"), ("{", "not JSON"), ("[]", "not a JSON object"), ("[" * 100_000, "not JSON")],
)
def test_a_folder_that_is_no_model(make_tree, tmp_path, text, message):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        pair.judge_model(make_tree(), tmp_path)
