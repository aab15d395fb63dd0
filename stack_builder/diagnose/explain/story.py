"""The shape of a failure in a text: exceptions, how they are chained, and where the process died.

Works on the kept lines of :mod:`.sieve`, of one process or of several that wrote into one another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stack_builder.diagnose.explain.sieve import Line

_MAX_REGION = 40  # lines that the text of one exception may take

# What a line may begin with before its own text: containers and launchers ("web-1  | "), vLLM's workers
# ("(EngineCore pid=12) "), torchrun ("[rank1]:"), pytest ("E   ").
_PREFIX = re.compile(
    r"^(?:[\w.-]+\s+\| |\((?:[\w. -]+\s)?pid=\d+[^)]*\)\s?|\[(?:rank|default)?\d+\]:\s?|E  +"
    r"|\d{4}-\d\d-\d\dT[\d:.]+Z?\s|\d{4}-\d\d-\d\d [\d:,]+ - \S+ - [A-Z]+ - )+"
)
# A new record of a log: SGLang "[2026-11-29 20:11:44 TP1] ", vLLM "ERROR 11-29 20:11:44 [core.py:1] ", plain times.
_RECORD = re.compile(r"^(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)[: ])")
_VLLM_RECORD = re.compile(r"^(?:ERROR|WARNING) \d\d-\d\d [\d:]+ (?:\[[^\]]*\] )?")
_TAG = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:,.]+ (?P<tag>[^\]]+)\]")
_HEAD = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Fault|Timeout|OutOfResources))"
    r"(?:: |:?$)"
)
_FRAME = re.compile(r"^\s+(?:File \"|\^|~|raise |[\w.]+\()|^\s{4,}\S")
_BARE = re.compile(r"^Exception: |^[\w.]*Exception(?:: |$)")
_ANNOUNCES = re.compile(r"hit an exception|failed to start|fatal error|nitialization failed|Traceback of TP")
_NEAR = 200  # lines between an announcement and its exception
_CHAINS = (
    "The above exception was the direct cause of the following exception",
    "During handling of the above exception, another exception occurred",
)
_IGNORED = re.compile(
    r"[Ii]gnore import error|[Ff]all(?:ing|s)? back|will be (?:disabled|ignored|skipped)|[Ss]kipping"
    r"|[Pp]roceeding without|[Cc]ontinuing without"
    r"|[Ff]ailed to import .*(?:optional|skip)|\bNCCL INFO\b"
)
_ECHOED = re.compile(r"^\s*\$ |\bserver_args=|\bServerArgs\(|non-default args|\bNamespace\(|^\+ ")
_WARNED = re.compile(r"(?<!NCCL )\bWARN(?:ING)?\b|\w+Warning: ")  # NCCL calls its errors so


@dataclass(frozen=True, slots=True)
class Raised:
    """One exception.

    Attributes:
        start: index (into the lines) of the line that names it.
        end: index after the last line of its text.
        type: its class.
        tag: the process that logged it, where the log says.
        chained: the exception that it led to follows directly ("direct cause", "during handling").
    """

    start: int
    end: int
    type: str
    tag: str | None
    chained: bool


@dataclass(frozen=True, slots=True)
class Story:
    """What happened, as far as the shape of the text tells.

    Attributes:
        lines: the kept lines.
        raised: exceptions in order.
        fatal: indices into ``raised`` of those that ended a process: the last one before its death, with its chain.
        death: index of the line where a process is first said to have died; the number of lines if none is.
    """

    lines: tuple[Line, ...]
    raised: tuple[Raised, ...]
    fatal: frozenset[int]
    death: int


def body(text: str) -> str:
    """Give what a line says after the marks of launchers, workers and loggers."""
    text = _PREFIX.sub("", text)
    return _VLLM_RECORD.sub("", text)


def echoed(text: str) -> bool:
    """Whether the line only repeats what was asked for: a command, the parsed options."""
    return _ECHOED.search(text) is not None


def ignored(text: str) -> bool:
    """Whether the line itself says that it does not matter: a fallback, an optional import."""
    return _IGNORED.search(text) is not None


def warned(text: str) -> bool:
    """Whether the line is a warning."""
    return _WARNED.search(text) is not None


def read(lines: tuple[Line, ...], deaths: Sequence[int]) -> Story:
    """Find exceptions and death.

    Args:
        lines: the kept lines.
        deaths: indices of lines that say that a process died.
    """
    raised = _raised(lines)
    death = min(deaths, default=len(lines))
    return Story(lines, raised, _fatal(raised, lines, death), death)


def _raised(lines: tuple[Line, ...]) -> tuple[Raised, ...]:
    found: list[Raised] = []
    tag: str | None = None
    texts = [body(line.text) for line in lines]
    index = 0
    while index < len(lines):
        record = _TAG.match(texts[index])
        if _RECORD.match(texts[index]):
            tag = record["tag"] if record else None
        head = _HEAD.match(texts[index]) or _BARE.match(texts[index])
        if head is None:
            index += 1
            continue
        end = _end(texts, lines, index)
        chained = any(chain in text for text in texts[end : end + 3] for chain in _CHAINS)
        found.append(Raised(index, end, head[0].rstrip(": "), tag, chained))
        index = end
    return tuple(found)


def _end(texts: list[str], lines: tuple[Line, ...], start: int) -> int:
    """Give the index after the last line that belongs to the exception named at ``start``."""
    for index in range(start + 1, min(start + _MAX_REGION, len(texts))):
        gap = lines[index].number - lines[index - 1].number > 1
        text = texts[index]
        if gap or _RECORD.match(text) or text.startswith("Traceback (") or any(chain in text for chain in _CHAINS):
            return index
        if _HEAD.match(text) and _FRAME.match(texts[index - 1]):
            return index
    return min(start + _MAX_REGION, len(texts))


def _fatal(raised: tuple[Raised, ...], lines: tuple[Line, ...], death: int) -> frozenset[int]:
    """Give the exception that goes with the death, with its chain.

    A line that announces it ("Scheduler hit an exception: Traceback …") stands before the exception, one that only
    states it ("Received sigquit from a child process") after. Without either it is the last exception.
    """
    if death < len(lines) and _ANNOUNCES.search(lines[death].text):
        for number, one in enumerate(raised):
            if one.start >= death and lines[one.start].number - lines[death].number <= _NEAR:
                return frozenset(_chain(raised, number))
    before = [number for number, one in enumerate(raised) if one.start < death]
    if not before:
        return frozenset(_chain(raised, len(raised) - 1)) if raised else frozenset()
    return frozenset(_chain(raised, before[-1]))


def _chain(raised: tuple[Raised, ...], number: int) -> set[int]:
    """Give the exceptions linked with ``number`` by "direct cause" or "during handling", itself included."""
    first = last = number
    while first > 0 and raised[first - 1].chained:
        first -= 1
    while last < len(raised) - 1 and raised[last].chained:
        last += 1
    return set(range(first, last + 1))
