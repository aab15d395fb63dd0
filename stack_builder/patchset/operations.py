"""What a patch does to one file: ensure a dictionary key, ensure methods, replace an exact text.

``apply`` returns the new bytes, the same bytes where there is nothing left to do, and raises
:class:`~stack_builder.patchset.source.AnchorError` where the source is not what the operation was written for.
Every result has been parsed again and holds what was asked for; applying twice is applying once.
"""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from stack_builder.patchset.source import (
    AnchorError,
    Source,
    defined_names,
    dict_value,
    find_class,
    find_dict,
    insert,
)

FilePath = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*\.py$", max_length=400)
]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Dotted = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]


class _Operation(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    file: FilePath  # relative to site-packages


class EnsureDictKey(_Operation):
    """``key`` is in the dictionary display ``dict`` (``NAME`` of the module or ``Class.NAME``).

    Its value is the text ``value`` (one line), or that of the entry ``copy_from``, comments included. A key that is
    there already stays as it is, whatever its value.
    """

    op: Literal["ensure-dict-key"]
    display: Dotted = Field(alias="dict")
    key: int | str
    value: Annotated[str, StringConstraints(pattern=r"^[^\r\n]+$", max_length=2000)] | None = None
    copy_from: int | str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.value is None) == (self.copy_from is None):
            raise ValueError("give either value or copy_from")
        return self

    def apply(self, data: bytes) -> bytes:
        """See the module."""
        source = Source.read(data)
        display = find_dict(source.tree, self.display)
        if dict_value(display, self.key) is not None:
            return data
        if self.copy_from is not None:
            value = dict_value(display, self.copy_from)
            if value is None:
                raise AnchorError(f"{self.display} has no key {self.copy_from!r} to copy")
            index = display.values.index(value)
            entry = self._copied(source, display, index)
        else:
            assert self.value is not None
            value = _expression(self.value)
            index = len(display.values) - 1
            entry = repr(self.key).encode() + b": " + self.value.encode()
        result = source.write(_with_entry(source, display, index, entry))
        made = dict_value(find_dict(Source.read(result).tree, self.display), self.key)
        if made is None or ast.dump(made) != ast.dump(value):
            raise AnchorError(f"{self.display} is written in a way that this operation cannot extend")
        return result

    def _copied(self, source: Source, display: ast.Dict, index: int) -> bytes:
        key = display.keys[index]
        assert key is not None
        end, _ = _entry_end(source, display, index)
        return repr(self.key).encode() + source.text[source.end(key) : end]


class EnsureMethods(_Operation):
    """The class has these methods; those it lacks are added at its end, in the order given.

    ``text`` is a sequence of ``def`` statements, written with four spaces per level from column 0.
    """

    op: Literal["ensure-methods"]
    cls: Identifier = Field(alias="class")
    text: Text

    @field_validator("text")
    @classmethod
    def _only_methods(cls, text: str) -> str:
        try:
            body = ast.parse(text).body
        except SyntaxError as error:
            raise ValueError(f"text does not parse: {error}") from error
        if not body or not all(isinstance(node, ast.FunctionDef) for node in body):
            raise ValueError("text holds something other than def statements")
        return text

    @property
    def methods(self) -> dict[str, str]:
        """Name -> source text, decorators included, without a newline at the end."""
        found = {}
        for node in ast.parse(self.text).body:
            assert isinstance(node, ast.FunctionDef)
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = self.text.split("\n")[first - 1 : node.end_lineno]
            found[node.name] = "\n".join(lines).rstrip()
        return found

    def apply(self, data: bytes) -> bytes:
        """See the module."""
        source = Source.read(data)
        found = find_class(source.tree, self.cls)
        missing = [text for name, text in self.methods.items() if name not in defined_names(found.body)]
        if not missing:
            return data
        indent = source.indent(source.start(found.body[0]))
        outer = source.indent(source.start(found)) or b""
        if indent is None:
            raise AnchorError(f"the body of class {self.cls} stands on the line of its header")
        step = indent.removeprefix(outer).decode()
        block = "".join("\n" + _indented(text, indent.decode(), step) + "\n" for text in missing)
        last = source.end(found.body[-1])
        after = source.line_after(last)
        if after is None:
            edited = source.text + source.line_end + source.with_line_ends(block.rstrip("\n"))
        else:
            edited = insert(source.text, {after: source.with_line_ends(block)})
        result = source.write(edited)
        if not set(self.methods) <= defined_names(find_class(Source.read(result).tree, self.cls).body):
            raise AnchorError(f"class {self.cls} is written in a way that this operation cannot extend")
        return result


class ReplaceText(_Operation):
    """``old`` becomes ``new``. ``old`` occurs exactly once; there is no fuzz."""

    op: Literal["replace-text"]
    old: Text
    new: Text

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.old == self.new:
            raise ValueError("old and new are the same text")
        return self

    def apply(self, data: bytes) -> bytes:
        """See the module."""
        source = Source.read(data)
        old, new = source.with_line_ends(self.old), source.with_line_ends(self.new)
        if new in source.text and not _outside(source.text, old, new):
            return data
        count = source.text.count(old)
        if count != 1:
            raise AnchorError(f"the text to replace occurs {count} times, not once: {_shown(self.old)}")
        edited = source.text.replace(old, new)
        if _outside(edited, old, new):
            raise AnchorError(f"the text to replace is still there afterwards: {_shown(self.old)}")
        result = source.write(edited)
        _ = Source.read(result).tree
        return result


Operation = Annotated[EnsureDictKey | EnsureMethods | ReplaceText, Field(discriminator="op")]


def _outside(text: bytes, old: bytes, new: bytes) -> bool:
    """Look for an ``old`` that is not part of a ``new``: a patch that adds lines keeps its anchor."""
    return old in (text.replace(new, b"\0") if old in new else text)


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise AnchorError(f"the value does not parse: {error}") from error


_GAP = re.compile(rb"(?:[\s\\)]|#[^\r\n]*)*")


def _entry_end(source: Source, display: ast.Dict, index: int) -> tuple[int, int | None]:
    """Where an entry ends (closing parentheses included), and the offset behind its comma, if it has one."""
    end = source.end(display.values[index])
    gap = _GAP.match(source.text, end)
    assert gap is not None
    parentheses = source.text.rfind(b")", end, gap.end())
    if b"#" in source.text[end : parentheses + 1]:
        raise AnchorError("a comment stands between a value and its closing parenthesis")
    comma = gap.end() + 1 if source.text[gap.end() : gap.end() + 1] == b"," else None
    return max(end, parentheses + 1), comma


def _with_entry(source: Source, display: ast.Dict, like: int, entry: bytes) -> bytes:
    """The text with ``entry`` as the last one of the display, laid out as the entry ``like``."""
    brace = source.end(display) - 1
    if not display.values:
        return insert(source.text, {brace: entry})
    end, comma = _entry_end(source, display, len(display.values) - 1)
    key = display.keys[like]
    assert key is not None
    indent = source.indent(source.start(key))
    if indent is None or source.indent(brace) is None:  # on one line, or the brace behind the last entry
        return insert(source.text, {comma: b" " + entry + b","} if comma else {end: b", " + entry})
    pieces = {source.line_start(brace): indent + entry + b"," + source.line_end}
    if comma is None:
        pieces[end] = b","
    return insert(source.text, pieces)


def _indented(text: str, indent: str, step: str) -> str:
    """Move a text with four spaces per level to the class's own indentation."""
    moved = []
    for line in text.split("\n"):
        stripped = line.lstrip(" ")
        level, rest = divmod(len(line) - len(stripped), 4)
        moved.append(indent + step * level + " " * rest + stripped if stripped else "")
    return "\n".join(moved)


def _shown(text: str) -> str:
    return repr(textwrap.shorten(text, 80))
