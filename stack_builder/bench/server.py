"""What the server says of itself around a run: limits, batch size and queue, acceptance, retracted requests.

Sources: SGLang's ``/server_info``, ``/v1/loads`` (``entrypoints/v1_loads.py``) and ``/metrics``
(``observability/metrics_collector.py``), 0.5.9 to 0.5.23. Another server has none of them; then the facts are unknown
and the guards that need them say so.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from stack_builder import jsontext
from stack_builder.bench.pool import Pool
from stack_builder.bench.wire import ExchangeError, Whole

_OK = 200
_POLL = 0.25  # seconds between two looks at /v1/loads; SGLang answers from its scheduler in about a millisecond
_SAMPLE = re.compile(r"^(sglang:[a-z0-9_:]+)(?:\{[^}]*\})?\s+(\S+)")
_RETRACTED = ("sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total")
# arguments that decide whether two arms are comparable, and those a policy needs
_KEPT = (
    "attention_backend", "chunked_prefill_size", "context_length", "cuda_graph_max_bs", "cuda_graph_max_bs_decode",
    "disable_overlap_schedule", "disable_radix_cache", "dp_size", "dtype", "enable_dp_attention",
    "enable_multi_layer_eagle", "enable_pdmux", "enable_two_batch_overlap", "kv_cache_dtype",
    "max_running_requests", "mem_fraction_static", "model_path", "quantization", "served_model_name",
    "speculative_adaptive", "speculative_adaptive_config", "speculative_algorithm", "speculative_draft_model_path",
    "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_num_steps", "stream_interval", "tp_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server, as ``/server_info`` shows it.

    Attributes:
        version: of SGLang; None if it is another server.
        limit: effective ``max_running_requests``.
        arguments: the resolved arguments that matter here.
    """

    version: str | None = None
    limit: int | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def speculates(self) -> bool:
        """Whether it was started with a speculative algorithm."""
        return bool(self.arguments.get("speculative_algorithm"))

    @property
    def adaptive(self) -> bool:
        """Whether adaptive speculation is on; SGLang clears the flag itself where it falls back."""
        return bool(self.arguments.get("speculative_adaptive"))


@dataclass(slots=True)
class Watch:
    """What was seen of the server during one run.

    Attributes:
        running: requests in the running batch at each look.
        waiting: requests in the queue at each look.
        retracted: how many were thrown out of memory and started again; None without ``--enable-metrics``.
        accept_length: from the server's counters over this run; None where it has none.
        tokens: output tokens by the server's own counter over this run; None without ``--enable-metrics``.
    """

    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    retracted: float | None = None
    accept_length: float | None = None
    tokens: float | None = None

    @property
    def mean_running(self) -> float | None:
        """Mean running batch over the looks that saw one."""
        seen = [count for count in self.running if count]
        return sum(seen) / len(seen) if seen else None


class ServerEye:
    """Asks one server about itself, on connections of its own."""

    def __init__(self, pool: Pool, *, api_key: str | None = None) -> None:
        self._pool = pool
        self._key = api_key
        self._has_loads = True

    def close(self) -> None:
        """Close its connections."""
        self._pool.close()

    async def facts(self) -> ServerFacts:
        """Read ``/server_info``; empty facts where there is none."""
        info = await self._json("/server_info")
        if info is None:
            return ServerFacts()
        states = info.get("internal_states")
        state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
        limits = (state.get("effective_max_running_requests_per_dp"), info.get("max_running_requests"))
        kept = {key: info[key] for key in _KEPT if isinstance(info.get(key), str | int | float | bool)}
        version = info.get("version")
        return ServerFacts(
            version if isinstance(version, str) else None,
            next((limit for limit in limits if isinstance(limit, int)), None),
            kept,
        )

    async def model(self) -> str | None:
        """Name of the first model in ``/v1/models``."""
        answer = await self._json("/v1/models")
        models = answer.get("data") if answer else None
        name = models[0].get("id") if isinstance(models, list) and models and isinstance(models[0], dict) else None
        return name if isinstance(name, str) else None

    async def flush_cache(self) -> bool:
        """Empty the prefix cache, so that no run profits from an earlier one; False where that is not offered."""
        for _ in range(20):  # SGLang refuses while a request is still being put away
            status = await self._status("POST", "/flush_cache")
            if status == _OK:
                return True
            if status is None or status == 404:
                return False
            await asyncio.sleep(0.1)
        return False

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watch]:
        """Look at the server for as long as the context lasts."""
        watch = Watch()
        before = await self._counters()
        looker = asyncio.create_task(self._look(watch))
        try:
            yield watch
        finally:
            looker.cancel()
            with suppress(asyncio.CancelledError):
                await looker
        _compare(watch, before, await self._counters())

    async def _look(self, watch: Watch) -> None:
        pause = _POLL / 4  # a first look early, for the sake of short runs
        while self._has_loads:
            await asyncio.sleep(pause)
            pause = _POLL
            answer = await self._json("/v1/loads?include=core")
            loads = answer.get("loads") if answer else None
            if not isinstance(loads, list):
                self._has_loads = False
                return
            ranks = [load for load in loads if isinstance(load, dict)]
            watch.running.append(sum(_int(load.get("num_running_reqs")) for load in ranks))
            watch.waiting.append(sum(_int(load.get("num_waiting_reqs")) for load in ranks))

    async def _counters(self) -> Mapping[str, float]:
        text = await self._text("/metrics")
        counters: dict[str, float] = {}
        for line in (text or "").splitlines():
            match = _SAMPLE.match(line)
            if match is not None:
                with suppress(ValueError):
                    value = float(match[2])
                    if math.isfinite(value):
                        counters[match[1]] = counters.get(match[1], 0.0) + value
        return counters

    async def _json(self, path: str) -> dict[str, Any] | None:
        text = await self._text(path)
        if text is None:
            return None
        try:
            answer = jsontext.loads(text)
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None

    async def _text(self, path: str) -> str | None:
        whole = Whole()
        try:
            status = await self._pool.send(self._pool.endpoint.request("GET", path, api_key=self._key), whole)
        except ExchangeError:
            return None
        return whole.body.decode("utf-8", errors="replace") if status == _OK else None

    async def _status(self, method: str, path: str) -> int | None:
        try:
            return await self._pool.send(self._pool.endpoint.request(method, path, api_key=self._key), Whole())
        except ExchangeError:
            return None


def _compare(watch: Watch, before: Mapping[str, float], after: Mapping[str, float]) -> None:
    """Fill in what changed: retracted requests, tokens, and those per verify pass (its counter is in 0.5.13 and on)."""
    for name in _RETRACTED:
        if name in after:
            watch.retracted = after[name] - before.get(name, 0.0)
    if after and watch.retracted is None:
        watch.retracted = 0.0  # the counter appears with the first one
    steps = after.get("sglang:spec_verify_calls_total", 0.0) - before.get("sglang:spec_verify_calls_total", 0.0)
    tokens = after.get("sglang:generation_tokens_total", 0.0) - before.get("sglang:generation_tokens_total", 0.0)
    if "sglang:generation_tokens_total" in after:
        watch.tokens = tokens
    if steps > 0 and tokens > 0:
        watch.accept_length = tokens / steps


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
