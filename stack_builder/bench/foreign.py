"""Results of other tools, as runs of the experiment log: SGLang's bench_serving, GuideLLM, AIPerf.

Field names are those of sglang 0.5.23 (``benchmark/serving.py``), guidellm 0.8.1 (``benchmark/schemas/metrics.py``)
and aiperf 0.13.0 (``common/models/export_models.py``, ``exporters/metrics_csv_exporter.py``). Such a run has no guard
and no paired round; it is shown, and compared with nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stack_builder import jsontext
from stack_builder.bench.metrics import Figures, Latency
from stack_builder.bench.results import MAX_FILE, ArmResult, Results, RunResult, Settings, check, from_json
from stack_builder.bench.server import ServerFacts
from stack_builder.errors import UsageError

_NO_ERRORS = "Failed requests are not told: bench_serving writes them with --output-details alone."
_Row = tuple[float, Figures, float | None]  # level, figures, accept length
# rows of AIPerf's CSV, by the tag that its JSON gives them
_CSV_NAMES = {
    "Time to First Token (ms)": "time_to_first_token",
    "Inter Token Latency (ms)": "inter_token_latency",
    "Request Latency (ms)": "request_latency",
    "Output Token Throughput (tokens/sec)": "output_token_throughput",
    "Request Throughput (requests/sec)": "request_throughput",
    "Request Count": "request_count",
    "Request Count (requests)": "request_count",
    "Benchmark Duration (sec)": "benchmark_duration",
    "Total Input Sequence Length (tokens)": "total_isl",
    "Total Output Tokens (tokens)": "total_output_tokens",
    "Total Output Sequence Length (tokens)": "total_osl",
    "Error Request Count": "error_request_count",
    "Error Request Count (requests)": "error_request_count",
}


def import_file(path: Path) -> Results:
    """Read one file; which tool wrote it, stackb on another machine included, is told by its content.

    Raises:
        UsageError: no such file, or of no tool that is known.
    """
    if not path.is_file():
        raise UsageError("no such file", where=path)
    if path.stat().st_size > MAX_FILE:
        raise UsageError(f"larger than {MAX_FILE >> 20} MiB", where=path)
    data = path.read_bytes()
    text = data.decode("utf-8", errors="replace")
    try:
        document = _document(text, path)
        if isinstance(document, dict) and document.keys() >= {"schema_version", "arms", "runs"}:
            return from_json(text, path)
        source, rows, facts = _read(document, text, path)
        results = _results(source, rows, facts, path, hashlib.sha256(data).hexdigest())
        if source == "bench_serving" and "errors" not in document:
            results = replace(results, notes=(*results.notes, _NO_ERRORS))
        check(results, path)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, csv.Error) as error:
        raise UsageError(f"is not what it looks like: {error!r}"[:300], where=path) from error
    return results


def _document(text: str, path: Path) -> Any:
    """The file's JSON, or that of its first line; None of a table."""
    if path.suffix == ".csv":
        return None
    # bench_serving writes a request rate of Infinity
    return jsontext.loads(text.partition("\n")[0] if path.suffix == ".jsonl" else text, lenient=True)


def _read(first: Any, text: str, path: Path) -> tuple[str, list[_Row], ServerFacts]:
    if first is None:
        return "aiperf", [_aiperf(_aiperf_csv(text))], ServerFacts()
    if isinstance(first, dict) and "benchmarks" in first:
        return "guidellm", [_guidellm(entry) for entry in first["benchmarks"]], ServerFacts()
    if isinstance(first, dict) and "output_token_throughput" in first:
        return "aiperf", [_aiperf(first)], ServerFacts()
    if isinstance(first, dict) and "output_throughput" in first and "median_ttft_ms" in first:
        lines: list[Any] = [jsontext.loads(line, lenient=True) for line in text.splitlines() if line.strip()]
        return "bench_serving", [_bench_serving(line) for line in lines], _facts(lines[0].get("server_info"))
    raise UsageError(
        "is of no tool that is known", where=path, fix="give a file of bench_serving (.jsonl), GuideLLM or AIPerf"
    )


def _bench_serving(row: Mapping[str, Any]) -> _Row:
    level = row.get("max_concurrency") or round(row["concurrency"]) or 1
    errors = sum(1 for error in row.get("errors", ()) if error)
    accept = row.get("accept_length")
    figures = _figures(
        completed=row["completed"],
        failed=errors,
        seconds=row["duration"],
        prompt_tokens=row.get("total_input_tokens", 0),
        tokens=row["total_output_tokens"],
        throughput=row["output_throughput"],
        latencies={
            ours: _latency(row, f"mean_{theirs}_ms", f"median_{theirs}_ms", f"p90_{theirs}_ms", f"p99_{theirs}_ms")
            for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2e_latency"))
        },
    )
    return float(level), figures, accept if isinstance(accept, int | float) else None


def _guidellm(entry: Mapping[str, Any]) -> _Row:
    metrics = entry["metrics"]
    totals = metrics["request_totals"]
    strategy = entry["config"]["strategy"]
    level = strategy.get("streams") or round(metrics["request_concurrency"]["successful"]["mean"]) or 1
    throughput = metrics["output_tokens_per_second"]["successful"]["mean"]
    # as numbers, before they are multiplied: a list or a word times a count is a very long one
    completed = int(totals["successful"])
    tokens = round(float(metrics["output_token_count"]["successful"]["mean"]) * completed)
    figures = _figures(
        completed=completed,
        failed=totals["errored"],
        seconds=entry.get("duration") or (tokens / throughput if throughput else 0.0),
        prompt_tokens=round(float(metrics["prompt_token_count"]["successful"]["mean"]) * completed),
        tokens=tokens,
        throughput=throughput,
        latencies={
            "ttft": _distribution(metrics["time_to_first_token_ms"], 1),
            "tpot": _distribution(metrics["inter_token_latency_ms"], 1),
            "e2e": _distribution(metrics["request_latency"], 1000),
        },
    )
    return float(level), figures, None


def _aiperf(summary: Mapping[str, Any]) -> _Row:
    def value(tag: str) -> float:
        found = summary.get(tag)
        return float(found["avg"]) if isinstance(found, Mapping) and found.get("avg") is not None else 0.0

    configured = _find(summary.get("input_config"), "concurrency")
    by_law = value("request_throughput") * value("request_latency") / 1000  # Little: L = lambda W
    figures = _figures(
        completed=round(value("request_count")),
        failed=round(value("error_request_count")),
        seconds=value("benchmark_duration"),
        prompt_tokens=round(value("total_isl")),
        tokens=round(value("total_output_tokens") or value("total_osl")),
        throughput=value("output_token_throughput"),
        latencies={
            ours: _latency(summary[theirs], "avg", "p50", "p90", "p99")
            for ours, theirs in (
                ("ttft", "time_to_first_token"),
                ("tpot", "inter_token_latency"),
                ("e2e", "request_latency"),
            )
            if theirs in summary
        },
    )
    return configured or max(round(by_law), 1), figures, None


def _aiperf_csv(text: str) -> dict[str, dict[str, str]]:
    """Give the two tables of AIPerf's CSV the shape of its JSON: distributions first, then single values."""
    found: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for row in csv.reader(io.StringIO(text)):
        if row and row[0] == "Metric":
            heads = ["avg" if head == "Value" else head for head in row[1:]]
        elif row and row[0] in _CSV_NAMES:
            found[_CSV_NAMES[row[0]]] = dict(zip(heads, row[1:], strict=False))
    if "output_token_throughput" not in found:
        raise ValueError("no row 'Output Token Throughput (tokens/sec)'")
    return found


def _find(config: object, key: str) -> float | None:
    """The first whole number under a key, however deep AIPerf's configuration holds it."""
    if isinstance(config, Mapping):
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return float(value)
        config = list(config.values())
    if isinstance(config, list):
        return next((found for part in config if (found := _find(part, key)) is not None), None)
    return None


def _distribution(metric: Mapping[str, Any], scale: float) -> Latency | None:
    successful = metric["successful"]
    points = successful["percentiles"]
    values = (successful["mean"], points["p50"], points["p90"], points["p99"])
    return Latency(*(float(value) * scale for value in values)) if successful.get("count") else None


def _latency(row: Mapping[str, Any], *names: str) -> Latency | None:
    values = [row.get(name) for name in names]
    if any(value in (None, "") for value in values):
        return None
    return Latency(*(float(value) for value in values if value is not None))


def _figures(
    *,
    completed: int,
    failed: int,
    seconds: float,
    prompt_tokens: int,
    tokens: int,
    throughput: float,
    latencies: Mapping[str, Latency | None],
) -> Figures:
    # Nothing of the file was looked at yet: words where numbers belong end here.
    completed, prompt_tokens, tokens = int(completed), int(prompt_tokens), int(tokens)
    seconds, throughput = float(seconds), float(throughput)
    return Figures(
        requests=completed + failed,
        completed=completed,
        errors={"unknown": failed} if failed else {},
        messages=(),
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        tokens=tokens,
        throughput=throughput,
        full_seconds=seconds,
        full_throughput=throughput,
        ttft=latencies.get("ttft"),
        tpot=latencies.get("tpot"),
        itl=latencies.get("itl"),
        e2e=latencies.get("e2e"),
        goodput=None,
        accept_length=None,
    )


def _facts(info: object) -> ServerFacts:
    if not isinstance(info, Mapping):
        return ServerFacts()
    version, limit = info.get("version"), info.get("max_running_requests")
    return ServerFacts(
        version if isinstance(version, str) else None,
        limit if isinstance(limit, int) else None,
        {key: value for key, value in info.items() if key.startswith("speculative") and isinstance(value, str | int)},
    )


def _results(source: str, rows: list[_Row], facts: ServerFacts, path: Path, digest: str) -> Results:
    at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    stamp = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    seen: dict[float, int] = {}
    runs = []
    for order, (level, figures, accept) in enumerate(rows):
        number = seen[level] = seen.get(level, -1) + 1
        runs.append(RunResult(source, level, number, order, stamp, figures, accept_length=accept))
    tokens = max((run.figures.tokens // max(run.figures.completed, 1) for run in runs), default=0)
    return Results(
        id=f"{at:%Y%m%dT%H%M%SZ}-{digest[:6]}",
        started=stamp,
        ended=stamp,
        settings=Settings("unknown", tuple(sorted(seen)), tokens, requests=None, prompts="unknown"),
        arms=(ArmResult(source, "", facts),),
        runs=tuple(runs),
        source=source,
        notes=(f"Imported from {path.name}, sha256 {digest}.",),
    )
