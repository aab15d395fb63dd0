"""What one streamed answer says: when content arrived, how it ended, and how many tokens the server counted.

A chunk is no token: with speculation one event carries two or three. So events give times, and ``usage`` (OpenAI) or
``meta_info`` (SGLang's ``/generate``) gives counts. Only the first event with content, those without, and the last few
are read as JSON; the rest are told apart by a search for one key.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stack_builder import jsontext
from stack_builder.bench.wire import MAX_PIECE, ErrorKind, ExchangeError, Feed

OK = 200
_MAX_REFUSAL = 300  # bytes
_KEPT = 4  # last events kept for usage and finish reason


class Api(StrEnum):
    """The three ways to ask for a generation."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    GENERATE = "generate"

    @property
    def path(self) -> str:
        """Where to POST."""
        return {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}[self.value]

    @property
    def key(self) -> bytes:
        """The JSON key that holds text."""
        return b'"content":' if self is Api.CHAT else b'"text":'


def body(api: Api, prompt: str, *, tokens: int, model: str, temperature: float = 0.0) -> bytes:
    """Write the request: streamed, and of exactly so many output tokens, whatever the model would say.

    Args:
        api: which interface.
        prompt: text; ``chat`` sends it as the user's one message.
        tokens: to be generated.
        model: name for the OpenAI interfaces.
        temperature: of sampling; 0 is greedy.
    """
    content: dict[str, object]
    if api is Api.GENERATE:
        sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
        content = {"text": prompt, "sampling_params": sampling, "stream": True}
    else:
        content = {"model": model, "max_tokens": tokens, "temperature": temperature, "ignore_eos": True, "stream": True}
        content["stream_options"] = {"include_usage": True}
        if api is Api.CHAT:
            content["messages"] = [{"role": "user", "content": prompt}]
        else:
            content["prompt"] = prompt
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Counted:
    """The server's own count of one answer.

    Attributes:
        tokens: completion tokens.
        prompt_tokens: tokens of the prompt; None where not told.
        verify_steps: verify passes of the target; None where not told or without speculation.
    """

    tokens: int
    prompt_tokens: int | None = None
    verify_steps: int | None = None


@dataclass(slots=True)
class EventStream:
    """Takes the body of one streamed answer (:class:`stack_builder.bench.wire.Sink`).

    Attributes:
        api: which JSON to expect.
        moved: when the last whole event arrived, with content or without.
        times: when each event with content arrived, in seconds of ``perf_counter``; several of one read share it.
        done: whether ``[DONE]`` was seen.
        refusal: the beginning of the body of any status but 200.
    """

    api: Api
    moved: float = 0.0
    times: list[float] = field(default_factory=list)
    done: bool = False
    refusal: bytes = b""
    _rest: bytes = b""
    _tail: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _marker: bytes | None = None

    def answer(self, status: int) -> Feed:
        """See :class:`stack_builder.bench.wire.Sink`."""
        return self.feed if status == OK else self._refused

    def _refused(self, piece: bytes, now: float) -> None:
        self.refusal = (self.refusal + piece)[:_MAX_REFUSAL]

    def feed(self, piece: bytes, now: float) -> None:
        """Take the next bytes of the stream, which arrived at ``now``.

        Raises:
            ExchangeError: an event that is too long, is no JSON, or says that the request has failed.
        """
        if self._rest:
            piece = self._rest + piece
            self._rest = b""
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n")
        at = 0
        while True:
            end = piece.find(b"\n\n", at)
            if end < 0:
                break
            self._event(piece[at:end], now)
            self.moved = now
            at = end + 2
        if at < len(piece):
            self._rest = piece[at:]
            if len(self._rest) > MAX_PIECE:
                raise ExchangeError(ErrorKind.PROTOCOL, f"an event of more than {MAX_PIECE} bytes")

    def _event(self, event: bytes, now: float) -> None:
        marker = self._marker
        if marker is not None:
            at = event.find(marker)
            # quotes inside a JSON string are escaped, so the key cannot occur in text
            if at >= 0 and event[at + len(marker) : at + len(marker) + 1] != b'"':
                self.times.append(now)
                self._tail.append(event)
                return
        data = _data(event)
        if data is None:
            return
        if data == b"[DONE]":
            self.done = True
            return
        self._tail.append(event)
        answer = _json(data)
        _raise_error(answer)
        if _has_text(self.api, answer):
            self.times.append(now)
            if self._marker is None:
                self._marker = self._spelling(event)

    def _spelling(self, event: bytes) -> bytes | None:
        """The key as this server spells it, with or without a space before the value."""
        for space in (b"", b" "):
            marker = self.api.key + space + b'"'
            if marker in event:
                return marker
        return None

    def counted(self) -> Counted:
        """Read the server's count from the last events.

        Raises:
            ExchangeError: the stream was cut off, or holds no count.
        """
        if self._rest.strip():
            self.feed(b"\n\n", self.times[-1] if self.times else 0.0)  # a last event without its blank line
        for event in reversed(self._tail):
            data = _data(event)
            count = _count(self.api, _json(data)) if data else None
            if count is not None:
                return count
        if not self.done:
            raise ExchangeError(ErrorKind.TRUNCATED, "the stream ended without [DONE]")
        raise ExchangeError(ErrorKind.USAGE, "the server sent no count of tokens")


def _data(event: bytes) -> bytes | None:
    """The payload of an event; None for comments and events without data."""
    if event.startswith(b"data:") and b"\n" not in event:
        return event[5:].strip()
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _json(data: bytes) -> dict[str, Any]:
    try:
        answer = jsontext.loads(data)
    except ValueError as error:
        raise ExchangeError(ErrorKind.PROTOCOL, f"an event that is not JSON: {data[:80]!r}") from error
    if not isinstance(answer, dict):
        raise ExchangeError(ErrorKind.PROTOCOL, "an event that is not a JSON object")
    return answer


def _raise_error(answer: dict[str, Any]) -> None:
    error = answer.get("error")
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        raise ExchangeError(ErrorKind.STREAM, str(message)[:200])
    meta = answer.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if isinstance(reason, dict) and reason.get("type") == "abort":
        raise ExchangeError(ErrorKind.STREAM, f"aborted: {str(reason.get('message'))[:200]}")


def _has_text(api: Api, answer: dict[str, Any]) -> bool:
    if api is Api.GENERATE:
        return bool(answer.get("text"))
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    if api is Api.COMPLETIONS:
        return bool(choices[0].get("text"))
    delta = choices[0].get("delta")
    return isinstance(delta, dict) and bool(delta.get("content") or delta.get("reasoning_content"))


def _count(api: Api, answer: dict[str, Any]) -> Counted | None:
    source = answer.get("meta_info" if api is Api.GENERATE else "usage")
    if not isinstance(source, dict) or not isinstance(source.get("completion_tokens"), int):
        return None
    prompt, steps = source.get("prompt_tokens"), source.get("spec_verify_ct")
    return Counted(
        source["completion_tokens"],
        prompt if isinstance(prompt, int) else None,
        steps if isinstance(steps, int) and steps > 0 else None,
    )
