"""How commands hand a report to the user: one format on stdout, and the exit code that follows from it."""

from __future__ import annotations

import sys
from enum import StrEnum

from stack_builder.errors import ExitCode
from stack_builder.report import Report


class Format(StrEnum):
    """Choices of ``--format``."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


def emit(
    report: Report,
    format: Format,  # noqa: A002 - the option's name
    *,
    strict: bool = False,
    aside: bool = False,
) -> ExitCode:
    """Write ``report`` to stdout, or, where it is not what the command was asked for, ``aside`` to stderr.

    Returns:
        the exit code of the command: 0 clean, 1 findings, 3 with ``strict`` where a rule was skipped.
    """
    write(_rendered(report, format), aside=aside)
    return report.exit_code(strict=strict)


def write(text: str, *, aside: bool = False) -> None:
    """Write ``text`` to stdout (``aside``: stderr), whatever its encoding can hold, and flush."""
    stream = sys.stderr if aside else sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    stream.flush()


def _rendered(report: Report, format: Format) -> str:  # noqa: A002
    match format:
        case Format.JSON:
            from stack_builder.report.json import to_json

            return to_json(report)
        case Format.SARIF:
            from stack_builder.diagnose import catalogue
            from stack_builder.report.sarif import to_sarif

            named = {found.rule for found in report.findings} | {skipped.rule for skipped in report.skipped}
            return to_sarif(report, [catalogue.rule(rule_id) for rule_id in sorted(named)])
        case Format.TEXT:
            from rich.console import Console

            from stack_builder.report.text import render_text

            console = Console()
            with console.capture() as capture:
                render_text(report, console)
            return capture.get()
