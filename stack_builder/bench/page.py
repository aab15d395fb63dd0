"""The experiment log as one HTML page: no script, no resource from elsewhere, light and dark, readable by ear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from stack_builder.bench.plot import charts
from stack_builder.bench.results import Results
from stack_builder.bench.statistics import Says
from stack_builder.bench.svg import STYLE, draw
from stack_builder.bench.tables import Table, conclusions, log_table, receipt_lines, tables

_STYLE = """
:root{color-scheme:light dark;--soft:light-dark(#d8d8d8,#3c3c3c)}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
 background:light-dark(#fff,#151515);color:light-dark(#1b1b1b,#e8e8e8)}
h2{margin-top:3rem;border-top:1px solid var(--soft);padding-top:1rem}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums;font-size:.9rem}
caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--soft)}th{white-space:nowrap}
.left{text-align:left}
a{color:light-dark(#0b57d0,#8ab4f8)}
td[data-says]{font-weight:600}td[data-says=pays]{color:light-dark(#1c6b3c,#6fd497)}
td[data-says="doesn't pay"]{color:light-dark(#a3261b,#ff9d92)}
figcaption{font-weight:600}.wide{overflow-x:auto}.wide:focus-visible{outline:2px solid}figure{margin:1.5rem 0}
svg{display:block;width:100%;min-width:34rem;height:auto;font-family:system-ui,sans-serif}
"""


def page(benches: Sequence[Results]) -> str:
    """Write the page, the newest bench first."""
    newest = sorted(benches, key=lambda results: results.started, reverse=True)
    listed = replace(log_table(newest), caption="benches, the newest first")
    body = [_section(results) for results in newest]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>stackb: experiment log</title>\n<style>{_STYLE}{STYLE}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>Experiment log</h1>\n{_table(listed, link=True)}\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _section(results: Results) -> str:
    said = "".join(f"<li>{escape(line)}</li>" for line in conclusions(results))
    receipt = "".join(f"<li>{escape(line)}</li>" for line in receipt_lines(results))
    drawn = "".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{_wide(draw(chart), chart.title)}</figure>"
        for chart in charts(results)
    )
    shown = "".join(_table(table) for table in tables(results))
    head = f'<section id="{escape(results.id)}" aria-labelledby="h-{escape(results.id)}">'
    title = f'<h2 id="h-{escape(results.id)}">{escape(results.id)}</h2>'
    return f"{head}{title}<ul>{said}</ul>{drawn}{shown}<h3>What was run</h3><ul>{receipt}</ul></section>"


def _table(table: Table, *, link: bool = False) -> str:
    heads = "".join(f'<th scope="col"{_side(table, at)}>{escape(head)}</th>' for at, head in enumerate(table.heads))
    rows = "".join(_row(table, row, link=link) for row in table.rows)
    caption = f"<caption>{escape(table.caption)}</caption>"
    return _wide(f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>", table.caption)


def _wide(content: str, label: str) -> str:
    """What scrolls sideways on a narrow screen, and is therefore reachable by keyboard."""
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(label, quote=True)}">{content}</div>'


def _row(table: Table, row: Sequence[str], *, link: bool) -> str:
    first = escape(row[0])
    if link:
        first = f'<a href="#{first}">{first}</a>'
    cells = "".join(f"<td{_side(table, at)}{_says(cell)}>{escape(cell)}</td>" for at, cell in enumerate(row[1:], 1))
    return f'<tr><th scope="row"{_side(table, 0)}>{first}</th>{cells}</tr>'


def _side(table: Table, column: int) -> str:
    return ' class="left"' if column in table.left else ""


def _says(text: str) -> str:
    return f' data-says="{escape(text, quote=True)}"' if text in tuple(Says) else ""
