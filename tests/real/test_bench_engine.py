"""``stackb bench`` against a real engine: llama.cpp on the CPU, whose own counter is the truth."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack_builder.bench.results import read
from stack_builder.cli.app import run

pytestmark = pytest.mark.online

ENGINE = Path(__file__).parents[1] / "fixtures" / "llm" / "engine.py"
# xllamacpp holds a build of llama.cpp with its server; gguf writes models
NEEDS = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy==2.4.6")
LEVELS, REQUESTS, TOKENS, WARM = (1, 2, 5, 10), 2, 16, 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("engine")
    python = place / "venv" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "venv", "-q", place / "venv"], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", python, *NEEDS], check=True)
    with (place / "log").open("w") as log:
        child = subprocess.Popen([python, ENGINE, place / "model.gguf"], stdout=subprocess.PIPE, stderr=log, text=True)
    assert child.stdout is not None
    try:
        url = child.stdout.readline().strip()
        assert url, (place / "log").read_text()
        yield url
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def counted(url: str) -> int:
    """Generated tokens by the engine's own counter."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("llamacpp:tokens_predicted_total "))


def test_tokens_are_the_engines_count_at_every_level(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACKB_STATE_DIR", str(tmp_path))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Tell me of {number}."}) + "\n" for number in range(20)))
    out, before = tmp_path / "r.json", counted(engine)
    words = ["bench", engine, "--concurrency", ",".join(map(str, LEVELS)), "--requests", str(REQUESTS)]
    assert run([*words, "--tokens", str(TOKENS), "--prompts", str(prompts), "--output", str(out)]) == 0
    results = read(out)
    assert [measured.level for measured in results.runs] == list(LEVELS)
    for measured in results.runs:
        seen = measured.figures
        assert (seen.completed, seen.errors) == (measured.level * REQUESTS, {})
        assert seen.tokens == seen.completed * TOKENS
        assert seen.prompt_tokens > seen.completed * len("Tell me of 1.")  # bytes, and the beginning of the text
        assert seen.ttft
        assert seen.e2e
        assert 0 < seen.ttft.p50 < seen.e2e.p50
    asked = sum(measured.figures.tokens for measured in results.runs)
    assert counted(engine) - before == asked + sum(LEVELS) * WARM
