"""Results as tables: the rows once, written as text, Markdown or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack_builder.bench.compare import Comparison, LevelSummary, comparisons, plateau, summaries
from stack_builder.bench.results import Results, level_text
from stack_builder.bench.statistics import Crossover, Ratio


@dataclass(frozen=True, slots=True)
class Table:
    """A caption, column heads and rows.

    Attributes:
        caption: what it shows.
        heads: of the columns.
        rows: of text.
        left: numbers of the columns that hold words, set to the left; the others hold numbers, set to the right.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})


def tables(results: Results) -> list[Table]:
    """Give the verdicts on each arm but the first, then one table of figures for each arm."""
    return [
        *(_ratio_table(results, compared) for compared in comparisons(results)),
        *(_arm_table(results, arm.name) for arm in results.arms),
    ]


def conclusions(results: Results) -> list[str]:
    """Say in sentences what follows: crossovers, plateaus, what was rejected, that it was cut short."""
    lines = [_crossover_line(compared) for compared in comparisons(results)] if not results.settings.open_loop else []
    for arm in results.arms:
        flat = plateau(results, arm.name)
        if flat is not None:
            lines.append(f"{arm.name}: {flat}.")
    rejected = [run for run in results.runs if not run.valid]
    for rule in sorted({reason.rule for run in rejected for reason in run.rejected}):
        broken = [(run, reason) for run in rejected for reason in run.rejected if reason.rule == rule]
        run, reason = broken[0]
        where = f"{run.arm} at {level_text(run.level)}"
        lines.append(f"{len(broken)} of {len(results.runs)} runs rejected by {rule}, first {where}: {reason.detail}.")
    notes = {
        reason.rule: f"{run.arm} at {level_text(run.level)}: {reason.detail}"
        for run in results.runs
        for reason in run.notes
    }
    lines += [f"Note {rule}, {text}." for rule, text in sorted(notes.items())]
    if results.partial:
        lines.append("Cut short: these are the runs that were made.")
    return [*lines, *results.notes]


def as_text(table: Table) -> str:
    """Columns set with spaces, for a terminal."""
    widths = [max(len(row[number]) for row in (table.heads, *table.rows)) for number in range(len(table.heads))]
    lines = [table.caption]
    for row in (table.heads, *table.rows):
        sized = zip(row, widths, strict=True)
        cells = [cell.ljust(w) if at in table.left else cell.rjust(w) for at, (cell, w) in enumerate(sized)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def as_markdown(table: Table) -> str:
    """A pipe table."""
    lines = [f"**{_escaped(table.caption)}**", ""]
    lines.append("| " + " | ".join(_escaped(head) for head in table.heads) + " |")
    lines.append("|" + "".join(" --- |" if at in table.left else " ---: |" for at in range(len(table.heads))))
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def report_text(results: Results) -> str:
    """All tables and conclusions for a terminal."""
    return "\n".join([*(as_text(table) for table in tables(results)), *conclusions(results)]) + "\n"


def report_markdown(results: Results) -> str:
    """The same as Markdown, with what was run on what."""
    lines = [f"## Bench {results.id}", "", *(f"- {_escaped(line)}" for line in receipt_lines(results)), ""]
    lines += [as_markdown(table) for table in tables(results)]
    lines += [f"- {_escaped(line)}" for line in conclusions(results)]
    return "\n".join(lines) + "\n"


def receipt_lines(results: Results) -> list[str]:
    """What was run, on what."""
    settings = results.settings
    load = f"{settings.seconds:g} s a run" if settings.seconds else f"{_requests(settings.requests)} of each client"
    if settings.open_loop and not settings.seconds:
        load = f"{_requests(settings.requests)} a run"
    lines = [
        f"{results.started} to {results.ended}, source {results.source}",
        f"{settings.api}, {settings.tokens} output tokens, prompts {settings.prompts}, {load}, seed {settings.seed}",
    ]
    if results.machine:
        lines.append(", ".join(f"{key} {value}" for key, value in results.machine.items()))
    for arm in results.arms:
        facts = arm.facts
        parts = [f"SGLang {facts.version}" if facts.version else "server", f"limit {facts.limit or 'unknown'}"]
        for key in ("speculative_algorithm", "speculative_num_steps", "speculative_adaptive", "attention_backend"):
            if facts.arguments.get(key):
                parts.append(f"{key} {facts.arguments[key]}")
        lines.append(f"{arm.name}: {', '.join(parts)}")
    return lines


def _arm_table(results: Results, arm: str) -> Table:
    unit = "req/s" if results.settings.open_loop else "clients"
    heads = (unit, "runs", "tok/s", "from", "to", "batch", "accept", "TTFT ms", "TPOT ms", "e2e ms")
    levels = summaries(results, arm)
    with_slo = bool(results.settings.slo)
    rows = tuple(_level_row(level, with_slo=with_slo) for level in levels)
    return Table(arm, (*heads, "goodput") if with_slo else heads, rows)


def _level_row(level: LevelSummary, *, with_slo: bool) -> tuple[str, ...]:
    runs = f"{level.runs}" if not level.rejected else f"{level.runs} (+{level.rejected} rejected)"
    row = (
        level_text(level.level),
        runs,
        _number(level.throughput, 1),
        _number(level.low, 1),
        _number(level.high, 1),
        _number(level.running, 1),
        _number(level.accept_length, 2),
        _number(level.ttft, 1),
        _number(level.tpot, 2),
        _number(level.e2e, 0),
    )
    return (*row, "-" if level.goodput is None else f"{level.goodput:.0%}") if with_slo else row


def _ratio_table(results: Results, compared: Comparison) -> Table:
    unit = "req/s" if results.settings.open_loop else "clients"
    heads = (unit, "ratio", "95 % interval", "rounds", "verdict")
    rows = tuple((level_text(level), *_ratio_cells(found)) for level, found in sorted(compared.ratios.items()))
    return Table(f"{compared.arm} / {compared.baseline}: {compared.measure}", heads, rows)


def _ratio_cells(found: Ratio) -> tuple[str, ...]:
    return f"{found.value:.3f}", interval_text(found), str(found.rounds), found.says.value


def interval_text(found: Ratio) -> str:
    """Write the interval of a ratio; a dash for none."""
    return "-" if found.low is None or found.high is None else f"{found.low:.3f} to {found.high:.3f}"


def _crossover_line(compared: Comparison) -> str:
    cross = compared.crossover
    if cross.value is None:
        return f"{compared.arm} against {compared.baseline}: crossover inconclusive: {cross.reason}."
    line = f"{compared.arm} against {compared.baseline}: stops to pay at {_span(cross)} clients"
    if compared.batch is not None and compared.batch.value is not None:
        line += f", a running batch of {_span(compared.batch)}"
    return f"{line}."


def _span(cross: Crossover) -> str:
    return f"{cross.value:.1f} ({cross.low:.1f} to {cross.high:.1f})"


def _requests(count: int | None) -> str:
    return "requests" if count is None else "1 request" if count == 1 else f"{count} requests"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def log_table(benches: Sequence[Results]) -> Table:
    """One line a bench: what was measured and what it says, null results included."""
    heads = ("bench", "source", "arms", "levels", "runs", "rejected", "result")
    return Table("experiment log", heads, tuple(map(_log_row, benches)), left=frozenset({0, 1, 2, 6}))


def _log_row(results: Results) -> tuple[str, ...]:
    levels = sorted({run.level for run in results.runs})
    span = "-" if not levels else f"{level_text(levels[0])}-{level_text(levels[-1])}"
    rejected = sum(not run.valid for run in results.runs)
    arms = " / ".join(arm.name for arm in results.arms)
    return (results.id, results.source, arms, span, str(len(results.runs)), str(rejected), _result(results))


def _result(results: Results) -> str:
    found = []
    for compared in comparisons(results):
        if compared.crossover.value is not None:
            found.append(f"{compared.arm} pays up to {compared.crossover.value:.0f} clients")
        else:
            verdicts = {seen.says.value for seen in compared.ratios.values()}
            found.append(f"{compared.arm} {verdicts.pop() if len(verdicts) == 1 else 'inconclusive'}")
    if not found:
        best = max(
            (level.throughput or 0.0 for arm in results.arms for level in summaries(results, arm.name)), default=0.0
        )
        found.append(f"up to {best:.1f} tok/s")
    return "; ".join([*found, *(["partial"] if results.partial else [])])
