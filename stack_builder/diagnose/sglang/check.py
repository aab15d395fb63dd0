"""Check a launch line with everything that is known of the SGLang that shall run it. The preflight of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.sglang import launch, pair
from stack_builder.report import Finding, Skipped
from stack_builder.sglang import argv, checkpoint, release
from stack_builder.sglang.argv import LaunchLine
from stack_builder.sglang.gates import table
from stack_builder.sglang.gates.readings import GPUS
from stack_builder.sglang.source import SourceTree

LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
MAX_ADAPTIVE = 1 << 20  # bytes of an adaptive configuration

_GATES = ("SGL020", "SGL021", "SGL022", "SGL023", "SGL024")


def check_launch(
    tree: SourceTree,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    gpu: str | None = None,
    model: Path | None = None,
    draft: Path | None = None,
) -> tuple[list[Finding], list[Skipped]]:
    """Check arguments, gates and, where their folders are here, the model and its draft.

    Args:
        tree: source of the SGLang that shall run.
        arguments: those after ``sglang.launch_server``.
        environment: variables set for the server on purpose.
        gpu: such as ``sm_120``; None skips the gates.
        model: folder of the model; taken from the arguments where it is not given and a folder.
        draft: folder of the draft, likewise.

    Raises:
        SourceError: this SGLang cannot be read.
        UsageError: a model folder without a readable ``config.json``.
    """
    known = release.read(tree)
    line = argv.parse(arguments, known.options)
    model = model or _folder(line, "--model-path")
    draft = draft or _folder(line, "--speculative-draft-model-path")
    gates = table.read(tree, tuple(dict.fromkeys((*GPUS, gpu)))) if gpu is not None else None
    findings = launch.judge(arguments, known, environment=environment, table=gates, gpu=gpu, adaptive=_adaptive(line))
    skipped = [catalogue.skipped(rule, "no GPU is named; give --gpu") for rule in _GATES if gpu is None]
    if model is not None:
        ranks = line.value("--tp-size")
        judged, unjudged = pair.judge_model(
            tree, model, draft, tensor_parallel=ranks if isinstance(ranks, int) and ranks > 0 else 1
        )
        findings += judged
        length = line.value("--context-length")
        if isinstance(length, int):
            allowed = (environment or {}).get(LONGER_CONTEXT, "").lower() in ("1", "true", "yes", "y")
            findings += pair.judge_context(checkpoint.read(model), length, allowed=allowed)
        skipped += unjudged
    return findings, [*skipped, *_not_here(line, model, draft)]


def _not_here(line: LaunchLine, model: Path | None, draft: Path | None) -> list[Skipped]:
    """What is skipped for a model or a draft that the line names and that is no folder of this machine."""
    named, drafted = line.value("--model-path"), line.value("--speculative-draft-model-path")
    if model is None:
        rules = (*pair.OF_MODEL, *pair.OF_PAIR) if drafted else pair.OF_MODEL
        reason = f"{named} is no folder of a model here: its weights and its contract with SGLang are not checked"
        return [catalogue.skipped(rule, reason) for rule in rules] if named else []
    if draft is None and drafted:
        reason = f"{drafted} is no folder of a model here: the draft is not checked against its target"
        return [catalogue.skipped(rule, reason) for rule in pair.OF_PAIR]
    return []


def _folder(line: LaunchLine, option: str) -> Path | None:
    value = line.value(option)
    if not isinstance(value, str) or not value or "\0" in value:
        return None
    folder = Path(value)
    return folder if (folder / "config.json").is_file() else None


def _adaptive(line: LaunchLine) -> str | None:
    value = line.value("--speculative-adaptive-config")
    path = Path(value) if isinstance(value, str) and value and "\0" not in value else None
    if path is None or not path.is_file() or path.stat().st_size > MAX_ADAPTIVE:
        return None
    return path.read_text(encoding="utf-8", errors="replace")
