"""``stackb rules [ID]``: the catalogue."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from stack_builder import jsontext
from stack_builder.cli.output import write
from stack_builder.diagnose import catalogue
from stack_builder.report import Rule


def command(
    rule_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Show one rule in full, such as HOST001.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the catalogue of rules, or one rule with its reason and fix."""
    chosen = [catalogue.rule(rule_id.upper())] if rule_id else list(catalogue.rules().values())
    if as_json:
        write(jsontext.dumps(chosen))
    elif rule_id:
        write(_full(chosen[0]))
    else:
        write("".join(f"{rule.id:<8} {rule.severity.value:<8} {rule.title}\n" for rule in chosen))


def _full(rule: Rule) -> str:
    parts = [f"{rule.id}  {rule.title}", f"severity: {rule.severity.value}", f"needs: {', '.join(rule.needs)}"]
    if rule.cause:
        parts.append(f"cause: {rule.cause}, {catalogue.causes()[rule.cause]}")
    parts += ["", f"Why: {rule.why}", ""]
    parts += [f"Fix {number}: {fix}" for number, fix in enumerate(rule.fix, 1)]
    if rule.silence:
        parts += ["", f"Expected when: {rule.silence}"]
    return "".join(f"{textwrap.fill(part, 100, subsequent_indent='  ', break_long_words=False)}\n" for part in parts)
