"""Rules SGL040…: do a target and its EAGLE-3 draft fit each other, and this release of SGLang?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stack_builder.diagnose import catalogue
from stack_builder.report import Finding, Severity, Skipped
from stack_builder.sglang import checkpoint
from stack_builder.sglang.checkpoint import Checkpoint
from stack_builder.sglang.contract import contract as contracts
from stack_builder.sglang.contract.callsites import Role
from stack_builder.sglang.contract.contract import Contract
from stack_builder.sglang.source import SourceTree

LLAMA_DRAFT = "LlamaForCausalLMEagle3"

# The rules by what they read: the target alone, or a draft as well.
OF_MODEL = ("SGL040", "SGL041", "SGL042", "SGL048", "SGL054", "SGL057")
OF_PAIR = (
    "SGL043",
    "SGL044",
    "SGL045",
    "SGL046",
    "SGL047",
    "SGL049",
    "SGL050",
    "SGL051",
    "SGL052",
    "SGL053",
    "SGL055",
    "SGL056",
)

# Tensors of that draft below "midlayer." or "layers.0." (sglang/srt/models/llama_eagle3.py, load_weights).
_MOST_LAYERS = 1000  # whose tensors are looked for: a configuration may claim any number
_LAYER = (
    "hidden_norm.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
)
_EMBEDDINGS = ("embed_tokens.weight", "tok_embeddings.weight", "word_embeddings.weight", "wte.weight", "embed.weight")
_HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")


def judge_model(
    tree: SourceTree, model: Path, draft: Path | None = None, *, tensor_parallel: int = 1
) -> tuple[list[Finding], list[Skipped]]:
    """Read and judge a model, and its draft, for the release in ``tree``.

    Args:
        tree: SGLang's source.
        model: folder of the target.
        draft: folder of the draft; None checks the target alone.
        tensor_parallel: number of GPUs that share the model.

    Raises:
        UsageError: a folder without a readable ``config.json``.
        SourceError: the release cannot be read.
    """
    target = checkpoint.read(model)
    drafted = None if draft is None else checkpoint.read(draft)
    return judge(target, drafted, contracts.read(tree), tensor_parallel=tensor_parallel)


def judge(
    target: Checkpoint, draft: Checkpoint | None, contract: Contract, *, tensor_parallel: int = 1
) -> tuple[list[Finding], list[Skipped]]:
    """Judge facts that were read before; see :func:`judge_model`."""
    findings = [*_target(target, contract), *_division(target, tensor_parallel)]
    skipped: list[Skipped] = []
    if draft is None:
        return findings, skipped
    findings += [*_damage(draft), *_draft_class(draft, contract)]
    if contract.missing(draft.architecture, Role.DRAFT) if _registered(draft, contract) else True:
        return findings, skipped  # not a draft at all: comparing its numbers would only add noise
    findings += [*_sizes(target, draft), *_division(draft, tensor_parallel)]
    findings += [*_layers(target, draft, contract), *_depth(draft, contract)]
    if draft.damage:
        skipped += [catalogue.skipped(rule, f"the draft's weights cannot be read: {draft.damage}") for rule in _WEIGHTS]
    else:
        findings += [*_vocabulary(target, draft), *_head(target, draft), *_fc(target, draft)]
        if draft.architecture != LLAMA_DRAFT or "quantization_config" in draft.config:
            skipped.append(catalogue.skipped("SGL055", f"the tensors of {_what(draft)} are not known"))
        else:
            findings += _tensors(draft)
    return findings, skipped


def judge_context(target: Checkpoint, asked: int, *, allowed: bool) -> list[Finding]:
    """Judge ``--context-length``, in tokens; ``allowed``: SGLang is told to take a longer one than the model's."""
    own = target.context_length
    if asked <= own:
        return []
    detail = f"{asked} tokens; {target.folder.name} has {own}"
    return [
        catalogue.finding(
            "SGL057",
            severity=Severity.WARNING if allowed else None,
            detail=detail,
            object="--context-length",
            fix=(f"set --context-length {own} or less, or leave it out",),
        )
    ]


_WEIGHTS = ("SGL045", "SGL047", "SGL055")


def _what(model: Checkpoint) -> str:
    quantised = " with quantised weights" if "quantization_config" in model.config else ""
    return f"{model.architecture}{quantised}"


def _registered(model: Checkpoint, contract: Contract) -> bool:
    return model.architecture in contract.registry.architectures


def _find(rule: str, model: Checkpoint, detail: str, **evidence: object) -> Finding:
    return catalogue.finding(rule, detail=detail, object=str(model.folder), evidence=evidence)


def _damage(model: Checkpoint) -> Iterator[Finding]:
    if model.damage:
        yield _find("SGL040", model, model.damage)


def _unregistered(model: Checkpoint, contract: Contract) -> Finding:
    named = f"architecture '{model.architecture}'" if model.architecture else "no architecture"
    return _find("SGL041", model, f"config.json names {named}; SGLang {contract.version} registers none such")


def _target(target: Checkpoint, contract: Contract) -> Iterator[Finding]:
    yield from _damage(target)
    if not _registered(target, contract):
        yield _unregistered(target, contract)
    else:
        yield from _hooks(target, contract)
    if not target.damage and target.tensor(*_EMBEDDINGS) is None:
        yield _find("SGL048", target, f"no tensor named like {_EMBEDDINGS[0]} among {len(target.tensors)}")


def _hooks(target: Checkpoint, contract: Contract) -> Iterator[Finding]:
    missing = contract.missing(target.architecture)
    if not missing or contract.registry.is_dynamic(contract.model(target.architecture)):
        return
    sites = {r.attribute: r.sites[0] for r in contract.requirements if r.role is Role.TARGET and r.sites}
    wrapper = contract.wrapper(target.architecture)
    where = contract.model(target.architecture)
    detail = f"{where.name} ({where.path}:{where.line}) has no {' and no '.join(missing)}"
    fix: tuple[str, ...] = ("use an SGLang release in which the model has them",)
    if wrapper is not None and wrapper.complete:
        detail += f"; its {wrapper.inner} ({wrapper.classes[0]}) has"
        fix = (f"write and apply the delegation: stackb patch contract {target.architecture}", *fix)
    yield catalogue.finding(
        "SGL042",
        detail=detail,
        object=str(target.folder),
        distribution=f"sglang {contract.version}",
        evidence={"called_at": {name: sites[name] for name in missing if name in sites}},
        fix=fix,
    )


def _draft_class(draft: Checkpoint, contract: Contract) -> Iterator[Finding]:
    if not _registered(draft, contract):
        yield _unregistered(draft, contract)
        return
    missing = contract.missing(draft.architecture, Role.DRAFT)
    if missing:
        known = ", ".join(contract.satisfying(Role.DRAFT))
        detail = f"{draft.architecture} has no {' and no '.join(missing)}; drafts of this release are {known}"
        yield _find("SGL043", draft, detail)
        return
    tied = draft.config.get("tie_word_embeddings") is True
    if draft.architecture == LLAMA_DRAFT and not tied and "draft_vocab_size" not in draft.text:
        yield _find("SGL056", draft, "config.json has no draft_vocab_size")


def _sizes(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    wide, own = target.number("hidden_size"), draft.number("hidden_size")
    read = draft.number("target_hidden_size")
    if wide is not None and (own != wide or (read is not None and read != wide)):
        seen = own if own != wide else read
        yield _find("SGL044", draft, f"the target's hidden size is {wide}, the draft is made for {seen}")
    words, drafted = target.number("vocab_size"), draft.number("vocab_size")
    if words is not None and drafted != words:
        yield _find("SGL046", draft, f"the target has {words} tokens, the draft's config.json says {drafted}")
    types = (_compute_type(target), _compute_type(draft))
    if None not in types and types[0] != types[1]:
        yield _find("SGL052", draft, f"the target computes in {types[0]}, the draft in {types[1]}")
    if draft.context_length < target.context_length:
        detail = f"{draft.context_length} tokens; the target has {target.context_length}"
        yield catalogue.finding(
            "SGL053",
            detail=detail,
            object=str(draft.folder),
            fix=(f"set --context-length {draft.context_length}", *catalogue.rule("SGL053").fix[1:]),
        )


def _compute_type(model: Checkpoint) -> str | None:
    """``--dtype auto``: float32 becomes float16 (sglang/srt/configs/model_config.py, _get_and_verify_dtype)."""
    return {"float32": "float16", "half": "float16"}.get(model.dtype or "", model.dtype)


def _division(model: Checkpoint, ranks: int) -> Iterator[Finding]:
    heads = model.number("num_attention_heads")
    groups = model.number("num_key_value_heads")
    latent = model.number("kv_lora_rank") is not None  # multi-head latent attention keeps one cache for all heads
    if heads is not None and heads % ranks:
        yield _find("SGL054", model, f"{heads} attention heads over {ranks} GPUs")
    elif groups and not latent and groups % ranks and ranks % groups:
        yield _find("SGL054", model, f"{groups} key-value heads over {ranks} GPUs")


def _layers(target: Checkpoint, draft: Checkpoint, contract: Contract) -> Iterator[Finding]:
    depth = target.number("num_hidden_layers")
    if depth is None:
        return
    ids = checkpoint.auxiliary_layers(draft.config)
    default = checkpoint.default_layers(depth)
    layers = ids or default
    wrong = [i for i in layers if not -1 <= i < depth]
    if wrong or len(set(layers)) != len(layers):
        what = f"of {list(layers)}, {wrong} are no layers" if wrong else f"{list(layers)} names one twice"
        yield _find("SGL049", draft, f"{what}; the target has {depth} layers", named_by_draft=ids is not None)
    elif ids is not None and sorted(ids) != sorted(default) and contract.traps.default_layers:
        yield catalogue.finding(
            "SGL050",
            detail=f"the draft reads layers {list(ids)}; graphs are captured with {list(default)}",
            object=str(draft.folder),
            distribution=f"sglang {contract.version}",
            evidence={"captured_at": list(contract.traps.default_layers)},
        )
    if ids is not None and len(ids) != 3 and contract.traps.three_states and draft.architecture == LLAMA_DRAFT:
        detail = f"the draft reads {len(ids)} layers; {contract.traps.three_states} fixes the number at 3"
        yield _find("SGL049", draft, detail)


def _depth(draft: Checkpoint, contract: Contract) -> Iterator[Finding]:
    layers = draft.number("num_hidden_layers")
    if contract.traps.one_layer and draft.architecture == LLAMA_DRAFT and layers != 1:
        yield _find("SGL051", draft, f"{layers} layers", refused_at=contract.traps.one_layer)


def _vocabulary(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    words, drafted = target.number("vocab_size"), draft.number("draft_vocab_size")
    found = draft.tensor("d2t")
    if words is None or drafted is None:
        return
    if found is None:
        if drafted != words:
            detail = f"there is no d2t, but the draft has {drafted} of the target's {words} tokens"
            yield _find("SGL045", draft, detail)
        return
    name, tensor = found
    if tensor.shape != (drafted,):
        yield _find("SGL045", draft, f"{name} has shape {list(tensor.shape)}, not [{drafted}] as draft_vocab_size says")
        return
    offsets = checkpoint.read_map(tensor)
    if offsets is None:
        yield _find("SGL045", draft, f"{name} is of type {tensor.dtype}, not of 64-bit integers")
        return
    tokens = [position + offset for position, offset in enumerate(offsets)]
    outside = [token for token in tokens if not 0 <= token < words]
    if outside:
        detail = f"{len(outside)} of {drafted} entries of {name} lead outside the target's {words} tokens"
        yield _find("SGL045", draft, f"{detail}, the first to {outside[0]}")
    elif len(set(tokens)) != len(tokens):
        yield _find("SGL045", draft, f"{len(tokens) - len(set(tokens))} entries of {name} lead to a token twice")


def _head(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    tied = draft.config.get("tie_word_embeddings") is True
    rows, width = draft.number("draft_vocab_size"), draft.number("hidden_size")
    if tied or width is None:
        return
    if rows is None:  # the target's head is used
        shares = target.config.get("tie_word_embeddings") is True or target.text.get("tie_word_embeddings") is True
        if not target.damage and not shares and target.tensor(*_HEADS) is None:
            yield _find("SGL047", target, "the draft shares the target's head, and the target has none")
        return
    found = draft.tensor("lm_head.weight")
    if found is None:
        yield _find("SGL047", draft, f"no lm_head.weight of shape [{rows}, {width}]")
    elif found[1].shape != (rows, width):
        yield _find("SGL047", draft, f"{found[0]} has shape {list(found[1].shape)}, not [{rows}, {width}]")


def _fc(target: Checkpoint, draft: Checkpoint) -> Iterator[Finding]:
    """The layer that joins the hidden states: [hidden, states x target's hidden]."""
    found = draft.tensor("fc.weight")
    wide, own = target.number("hidden_size"), draft.number("hidden_size")
    if found is None or wide is None or own != wide or "quantization_config" in draft.config:
        return
    states = len(checkpoint.auxiliary_layers(draft.config) or (0, 0, 0))
    states = draft.number("num_aux_hidden_states") or states
    if found[1].shape != (own, states * wide):
        detail = f"{found[0]} has shape {list(found[1].shape)}; {states} states of {wide} need [{own}, {states * wide}]"
        yield _find("SGL049", draft, detail)


def _tensors(draft: Checkpoint) -> Iterator[Finding]:
    layers = draft.number("num_hidden_layers") or 1
    wanted: list[tuple[str, ...]] = [("fc.weight",), ("norm.weight",)]
    for layer in range(min(layers, _MOST_LAYERS)):
        places = ["midlayer", "layers.0"] if layer == 0 else [f"layers.{layer}"]
        wanted += [tuple(f"{place}.{name}" for place in places) for name in _LAYER]
    missing = [names[0] for names in wanted if draft.tensor(*names) is None]
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        yield _find("SGL055", draft, f"no {shown}", missing=missing)
