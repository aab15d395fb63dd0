"""How commands hand a report to the user: one format on stdout, and the exit code that follows from it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from stack_builder.errors import ExitCode

if TYPE_CHECKING:  # --help needs neither, and JSON no rich
    from rich.console import Console

    from stack_builder.report import Report

NARROWEST = 40
"""Columns below which a table holds no text; :data:`USUAL` is taken then, and the terminal wraps lines itself."""
USUAL = 80
_PIPE = 1000  # columns where nobody looks at a table but a program


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

    Home folders, names and secrets are taken out unless the call says ``--no-redact``.

    Returns:
        the exit code of the command: 0 clean, 1 findings, 3 with ``strict`` where a rule was skipped.
    """
    if _Redaction.wanted:
        from stack_builder.report.redact import Redactor

        report = Redactor.here().report(report)
    write(_rendered(report, format), aside=aside)
    return report.exit_code(strict=strict)


def redact_reports(wanted: bool) -> None:
    """Say whether the reports of this call are redacted: ``stackb --no-redact COMMAND …`` switches it off."""
    _Redaction.wanted = wanted


def redacted(line: str) -> str:
    """A line for the user, as far as it may be shown."""
    if not _Redaction.wanted:
        return line
    from stack_builder.report.redact import Redactor

    return Redactor.here().text(line)


class _Redaction:
    wanted = True


def write(text: str, *, aside: bool = False) -> None:
    """Write ``text`` to stdout (``aside``: stderr), whatever its encoding can hold, and flush."""
    stream = sys.stderr if aside else sys.stdout
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    stream.flush()


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, aside: bool = False) -> None:
    """Write rows under a header: folded to the width of a terminal, one line each where a program reads them."""
    from rich.table import Table
    from rich.text import Text

    from stack_builder.terminal import printable

    made = Table(box=None, pad_edge=False, header_style="bold")
    for head in header:
        made.add_column(head, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    console = _console(piped=not (sys.stderr if aside else sys.stdout).isatty())
    with console.capture() as capture:
        console.print(made)
    write(re.sub(r" +$", "", capture.get(), flags=re.MULTILINE), aside=aside)


def _console(*, piped: bool = False) -> Console:
    """A console of a width that holds text: COLUMNS=0 and terminals of no size stand for "unknown"."""
    from rich.console import Console

    if piped:
        return Console(width=_PIPE)
    width = Console().width
    return Console(width=width if width >= NARROWEST else USUAL)


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
            from stack_builder.report.text import render_text

            console = _console()
            with console.capture() as capture:
                render_text(report, console)
            return capture.get()
