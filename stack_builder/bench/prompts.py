"""What the load asks: real text, the same in the same order in every arm.

Random tokens are predictable by no draft, so they ruin acceptance and with it the answer to whether speculation pays
(SGLang issues 4759, 6949; SafeAILab/EAGLE issue 298).
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from stack_builder import jsontext, resources
from stack_builder.errors import UsageError

MAX_FILE = 64 << 20  # bytes
_RANDOM_WORDS = 48
_KEYS = ("prompt", "text", "question", "instruction")


def load_prompts(source: str, count: int, *, seed: int) -> tuple[str, ...]:
    """Give at most ``count`` prompts.

    Args:
        source: ``builtin``, ``random``, or a file: ``.jsonl`` with one object a line (``prompt``, ``text``, or the
            first ``messages`` entry), else text with an empty line between prompts.
        count: how many the largest run sends; fewer are repeated in turn.
        seed: of random prompts.

    Raises:
        UsageError: no such file, or none in it.
    """
    if source == "builtin":
        return builtin(count)
    if source == "random":
        chance = random.Random(seed)  # noqa: S311 - words, not secrets
        return tuple(_random_words(chance) for _ in range(count))
    path = Path(source)
    if not path.is_file():
        raise UsageError("no such file of prompts", where=source, fix="give a file, builtin or random")
    if path.stat().st_size > MAX_FILE:
        raise UsageError(f"larger than {MAX_FILE >> 20} MiB", where=path)
    text = path.read_text(encoding="utf-8", errors="replace")
    found = _json_lines(text, path) if path.suffix == ".jsonl" else [" ".join(p.split()) for p in text.split("\n\n")]
    prompts = tuple(islice((prompt for prompt in found if prompt), count))
    if not prompts:
        raise UsageError("holds no prompt", where=path)
    return prompts


def builtin(count: int) -> tuple[str, ...]:
    """Every passage under every instruction, passages first, so that neighbours share no beginning.

    Each passage breaks off at another word, as text does in a window that has been cut: greedy continuations then
    differ from prompt to prompt.
    """
    data = resources.table("bench", "prompts.toml")
    passages, instructions = data["passages"], data["instructions"]
    prompts = []
    for number in range(min(count, len(passages) * len(instructions))):
        words = passages[number % len(passages)].split()
        cut = len(words) - number * 7 % (len(words) // 2)
        instruction = instructions[(number // len(passages) + number) % len(instructions)]
        prompts.append(f"{instruction}\n\n{' '.join(words[:cut])}")
    return tuple(prompts)


def _random_words(chance: random.Random) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(_RANDOM_WORDS))


def _json_lines(text: str, path: Path) -> list[str]:
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = jsontext.loads(line)
        except ValueError as error:
            raise UsageError(f"is not JSON: {error}", where=f"{path}:{number}") from error
        prompts.append(_prompt_of(row, f"{path}:{number}"))
    return prompts


def _prompt_of(row: object, where: str) -> str:
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        for key in _KEYS:
            if isinstance(row.get(key), str):
                return str(row[key])
        messages = row.get("messages") or row.get("conversations")
        if isinstance(messages, list) and messages and isinstance(messages[0], dict):
            content = messages[0].get("content") or messages[0].get("value")
            if isinstance(content, str):
                return content
    raise UsageError("holds no prompt", where=where, fix=f"give one of {', '.join(_KEYS)} or messages")
