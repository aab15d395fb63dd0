"""What a running SGLang server says of itself, over HTTP. Answers are data: bounded, and never trusted to be whole.

Sources: ``entrypoints/http_server.py`` of SGLang 0.5.9 to 0.5.23. ``/get_server_info`` and ``/get_load`` are
deprecated there; this module asks their successors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from stack_builder import jsontext
from stack_builder.errors import MachineError
from stack_builder.wheels.pace import pace

MAX_ANSWER = 16 << 20  # bytes; /server_info of the largest version is below 100 kB
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})?\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished ``/generate`` request.

    Attributes:
        tokens: completion tokens as the server counts them.
        verify_steps: forward passes of the target that verified a draft; None without speculation.
    """

    tokens: int
    verify_steps: int | None


class ServerClient:
    """Asks one server.

    Args:
        url: such as ``http://127.0.0.1:30000``.
        api_key: sent as a bearer token; never logged.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        # A proxy of the environment must not stand between this machine and its own loopback.
        self._http = pace(httpx.Client(base_url=url, headers=headers, timeout=10.0, trust_env=False))
        self.url = url

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def health(self) -> int | None:
        """Status code of ``/health``; None while nobody answers. 503 means: still warming up, or shutting down."""
        try:
            with self._http.stream("GET", "/health", timeout=30.0) as response:  # its body may have any size
                return response.status_code
        except httpx.HTTPError:
            return None

    def server_info(self) -> Mapping[str, Any]:
        """Resolved arguments and ``internal_states``. A flag that is true here proves no kernel."""
        return self._json("GET", "/server_info")

    def loads(self) -> Mapping[str, Any]:
        """Running and waiting requests, throughput, acceptance, one entry a rank (``/v1/loads``, 0.5.9 on)."""
        return self._json("GET", "/v1/loads")

    def metrics(self) -> Mapping[str, tuple[float, ...]]:
        """Prometheus samples by name, one for each set of labels (``/metrics``, with ``--enable-metrics``)."""
        samples: dict[str, tuple[float, ...]] = {}
        for line in self._text("GET", "/metrics").splitlines():
            match = _SAMPLE.match(line)
            if match is not None and (value := _number(match[2])) is not None:
                samples[match[1]] = (*samples.get(match[1], ()), value)
        return samples

    def generate(self, prompt: str, *, max_new_tokens: int, timeout: float) -> Generation:
        """Generate greedily from a prompt, to the full length.

        Args:
            prompt: text.
            max_new_tokens: exactly this many are produced (``ignore_eos``).
            timeout: seconds; the first request may compile kernels.
        """
        body = {
            "text": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True},
        }
        answer = self._json("POST", "/generate", body=body, timeout=timeout)
        meta = answer.get("meta_info")
        if not isinstance(meta, dict) or not isinstance(meta.get("completion_tokens"), int):
            raise MachineError("the answer to /generate has no meta_info.completion_tokens", where=self.url)
        steps = meta.get("spec_verify_ct")
        return Generation(meta["completion_tokens"], steps if isinstance(steps, int) and steps > 0 else None)

    def _json(self, method: str, path: str, *, body: object = None, timeout: float = 10.0) -> dict[str, Any]:
        text = self._text(method, path, body=body, timeout=timeout)
        try:
            answer = jsontext.loads(text)
        except ValueError as error:
            raise MachineError(f"{path} did not answer with JSON", where=self.url) from error
        if not isinstance(answer, dict):
            raise MachineError(f"{path} did not answer with a JSON object", where=self.url)
        return answer

    def _text(self, method: str, path: str, *, body: object = None, timeout: float = 10.0) -> str:
        try:
            with self._http.stream(method, path, json=body, timeout=timeout) as response:
                data = bytearray()
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise MachineError(f"{path} answered with more than {MAX_ANSWER} bytes", where=self.url)
        except httpx.HTTPError as error:
            raise MachineError(f"{path}: {error or type(error).__name__}", where=self.url) from error
        if response.status_code != httpx.codes.OK:
            raise MachineError(f"{path} answered {response.status_code}", where=self.url)
        return data.decode("utf-8", errors="replace")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
