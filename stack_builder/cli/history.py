"""``stackb history``."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stack_builder.bench import history
from stack_builder.bench.results import Results, read, to_json
from stack_builder.bench.tables import as_text, log_table, report_markdown, report_text
from stack_builder.cli.output import write
from stack_builder.files import atomic_write


class View(StrEnum):
    """Choices of ``--format``."""

    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"
    JSON = "json"


def command(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID|FILE]...", help="Benches by id, or results files; default: all.")
    ] = None,
    format: Annotated[View, typer.Option(help="Of what is printed.")] = View.TEXT,  # noqa: A002
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|.png", help="Draw the curves of one bench; PNG needs matplotlib (stackb[plot])."
        ),
    ] = None,
    import_: Annotated[
        list[Path] | None,
        typer.Option(
            "--import", metavar="FILE", help="Add a result file of bench_serving, GuideLLM, AIPerf or bench --output."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write there instead of stdout.")] = None,
) -> None:
    """Show the experiment log as a table, Markdown, a page or a plot."""
    path = history.log_path()
    if import_:
        _import(import_, path)
    files = [Path(name) for name in ids or [] if Path(name).is_file()]
    names = [name for name in ids or [] if not Path(name).is_file()]
    log, problems = history.read_log(path) if names or not files else ([], [])
    for problem in problems:
        sys.stderr.write(f"warning: {problem}\n")
    benches = [*(history.chosen(log, names) if names or not files else []), *map(read, files)]
    if plot is not None:
        _plot(benches, plot)
        return
    text = _rendered(benches, format, whole=bool(ids))
    if output is not None:
        atomic_write(output, text)
    else:
        write(text)


def _rendered(benches: list[Results], format: View, *, whole: bool) -> str:  # noqa: A002
    match format:
        case View.JSON:
            return "".join(to_json(results, indent=None) for results in benches)
        case View.MARKDOWN:
            return "\n".join(report_markdown(results) for results in benches)
        case View.HTML:
            from stack_builder.bench.page import page

            return page(benches)
        case View.TEXT:
            if whole:
                return "\n".join(report_text(results) for results in benches)
            if not benches:
                sys.stderr.write("the log is empty; stackb bench writes to it\n")
                return ""
            return as_text(log_table(benches))


def _import(files: list[Path], path: Path) -> None:
    from stack_builder.bench.foreign import import_file

    known = {results.id for results in history.read_log(path)[0]}
    for results in [import_file(file) for file in files]:
        if results.id in known:
            sys.stderr.write(f"{results.id} from {results.source} is in the log already\n")
            continue
        known.add(results.id)
        history.append(results, path)
        sys.stderr.write(f"added {results.id} from {results.source}\n")


def _plot(benches: list[Results], target: Path) -> None:
    from stack_builder.bench.plot import write_plot

    write_plot(benches, target)
