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


def emit(report: Report, format: Format, *, strict: bool = False) -> ExitCode:  # noqa: A002 - the option's name
    """Write ``report`` to stdout.

    Returns:
        the exit code of the command: 0 clean, 1 findings, 3 with ``strict`` where a rule was skipped.
    """
    write(_rendered(report, format))
    return report.exit_code(strict=strict)


def write(text: str) -> None:
    """Write ``text`` to stdout, whatever its encoding can hold, and flush."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    sys.stdout.flush()


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
