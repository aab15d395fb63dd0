"""Every command of stackb that a rule, a fix or a message quotes is one that the command line has, options included."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from stack_builder.cli.app import COMMANDS, build_app

ROOT = Path(__file__).parents[2]
# what follows "stackb", or a group of its commands, in a sentence about it
PROSE = {
    "again",
    "always",
    "and",
    "fetches",
    "has",
    "is",
    "itself",
    "keeps",
    "on",
    "started",
    "that",
    "uses",
    "writes",
    "Root-Is-Purelib",
}
QUOTED = re.compile(r"(?<![\w/-])stackb ((?:[\w\u2026/=:|-]+ ?)+)")


def of_checks() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "checks").rglob("*.toml")):
        for text in strings(tomllib.loads(path.read_text(encoding="utf-8"))):
            yield str(path.relative_to(ROOT)), text


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def of_code() -> Iterator[tuple[str, str]]:
    """Strings of the program but for its docstrings; what an f-string fills in stands as ``X``."""
    for path in sorted((ROOT / "stack_builder").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                filled = (str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
                yield str(path.relative_to(ROOT)), "".join(filled)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (prose | parts):
                yield str(path.relative_to(ROOT)), node.value


def quoted() -> Iterator[tuple[str, str]]:
    for where, text in (*of_checks(), *of_code()):
        for match in QUOTED.finditer(" ".join(text.split())):
            words = match[1].replace(":", " ").split()
            if words[0] not in PROSE and words[0] != "X":
                yield where, " ".join(words)


QUOTES = sorted(set(quoted()))


@cache
def command(name: str) -> click.Command:
    return typer.main.get_command(build_app([name])).commands[name]  # type: ignore[attr-defined, no-any-return]


def test_there_are_commands_to_look_at() -> None:
    assert {where.partition("/")[0] for where, _ in QUOTES} == {"checks", "stack_builder"}


@pytest.mark.parametrize(("where", "words"), QUOTES)
def test_a_quoted_command_exists(where: str, words: str) -> None:
    name, *rest = words.split()
    if name.startswith("-"):  # of stackb itself
        assert name in {"--version", "--no-redact", "--help"}
        return
    assert name in COMMANDS, words
    called = command(name)
    if hasattr(called, "commands") and rest and re.fullmatch(r"[a-z-]+", rest[0]) and rest[0] not in PROSE:
        assert rest[0] in called.commands, words
        called = called.commands[rest[0]]
    known = {option for parameter in called.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in rest if word.startswith("--") and len(word) > 2}
    assert given <= {*known, "--help"}, words
