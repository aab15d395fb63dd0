"""Python source text that is edited at positions of its syntax tree, every other byte kept.

Encoding declaration, byte order mark, line ends and a missing last newline survive. Positions follow the ``ast``
module: lines count from 1, columns are offsets into the UTF-8 form of the line.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

MAX_SOURCE = 8 << 20  # bytes; the largest module of SGLang is below 1 MiB

_LINE_END = re.compile(rb"\r\n|\r|\n")


class AnchorError(Exception):
    """The source is not what an operation expects; says why, for the state's detail."""


@dataclass(frozen=True)
class Source:
    """One module.

    Attributes:
        text: UTF-8, without byte order mark, line ends as in the file.
        encoding: of the file.
        mark: the byte order mark, or nothing.
    """

    text: bytes
    encoding: str = "utf-8"
    mark: bytes = b""

    @classmethod
    def read(cls, data: bytes) -> Source:
        """Decode the bytes of a file.

        Raises:
            AnchorError: too large, not decodable, or an encoding that does not survive the way back.
        """
        if len(data) > MAX_SOURCE:
            raise AnchorError(f"larger than {MAX_SOURCE} bytes")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            mark = b"\xef\xbb\xbf" if encoding == "utf-8-sig" else b""
            plain = encoding.removesuffix("-sig")
            source = cls(data.removeprefix(mark).decode(plain).encode(), plain, mark)
        except (SyntaxError, UnicodeError, LookupError) as error:
            raise AnchorError(f"cannot be decoded: {error}") from error
        if source.write(source.text) != data:
            raise AnchorError(f"encoding {encoding} does not survive decoding and encoding")
        return source

    def write(self, text: bytes) -> bytes:
        """Encode an edited ``text`` as the file was.

        Raises:
            AnchorError: the file's encoding does not have all of its characters.
        """
        try:
            return self.mark + (text if self.encoding == "utf-8" else text.decode().encode(self.encoding))
        except UnicodeError as error:
            raise AnchorError(f"the new text cannot be written as {self.encoding}: {error}") from error

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree.

        Raises:
            AnchorError: not Python of this interpreter's version, or nested too deeply.
        """
        try:
            return ast.parse(self.text.decode())
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise AnchorError(f"does not parse: {error}") from error

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    @cached_property
    def line_end(self) -> bytes:
        """The line end of the first line."""
        match = _LINE_END.search(self.text)
        return match.group() if match else b"\n"

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Offset of a node's first byte."""
        return self._line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Offset behind a node's last byte."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def line_start(self, offset: int) -> int:
        """Offset of the first byte of the line that holds ``offset``."""
        return self._line_starts[bisect_right(self._line_starts, offset) - 1]

    def line_after(self, offset: int) -> int | None:
        """Offset of the line after the one that holds ``offset``; None where the text ends without a newline."""
        index = bisect_right(self._line_starts, offset)
        return self._line_starts[index] if index < len(self._line_starts) else None

    def indent(self, offset: int) -> bytes | None:
        """White space between the line's start and ``offset``; None where something else is there."""
        lead = self.text[self.line_start(offset) : offset]
        return lead if not lead.strip(b" \t\f") else None

    def with_line_ends(self, text: str) -> bytes:
        """``text``, written with newlines, in the file's own line ends."""
        return text.encode().replace(b"\n", self.line_end)


def insert(text: bytes, pieces: dict[int, bytes]) -> bytes:
    """Put each piece at its offset of ``text``."""
    result, last = [], 0
    for offset in sorted(pieces):
        result += [text[last:offset], pieces[offset]]
        last = offset
    return b"".join([*result, text[last:]])


def find_class(tree: ast.Module, name: str) -> ast.ClassDef:
    """The one class of that name at module level.

    Raises:
        AnchorError: there is none, or several.
    """
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if len(found) != 1:
        raise AnchorError(f"class {name} is defined {len(found)} times at module level, not once")
    return found[0]


def find_dict(tree: ast.Module, dotted: str) -> ast.Dict:
    """The one dictionary display assigned to ``NAME`` at module level, or to ``Class.NAME`` in a class body.

    Raises:
        AnchorError: there is none or several, it is something else, or it unpacks another (``**other``).
    """
    owner, _, name = dotted.rpartition(".")
    body = find_class(tree, owner).body if owner else tree.body
    values = [value for node in body if (value := _assigned(node, name)) is not None]
    if len(values) != 1:
        raise AnchorError(f"{dotted} is assigned {len(values)} times, not once")
    if not isinstance(values[0], ast.Dict):
        raise AnchorError(f"{dotted} is not a dictionary display")
    if any(key is None for key in values[0].keys):
        raise AnchorError(f"{dotted} unpacks another dictionary")
    return values[0]


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    match node:
        case ast.Assign(targets=targets, value=value):
            return value if any(isinstance(target, ast.Name) and target.id == name for target in targets) else None
        case ast.AnnAssign(target=ast.Name(id=found), value=value) if found == name:
            return value
        case _:
            return None


def dict_value(display: ast.Dict, key: int | str) -> ast.expr | None:
    """The value under a literal key; the last one counts, as when Python runs it."""
    found = None
    for node, value in zip(display.keys, display.values, strict=True):
        if isinstance(node, ast.Constant) and type(node.value) is type(key) and node.value == key:
            found = value
    return found


def defined_names(body: list[ast.stmt]) -> set[str]:
    """Names that a class body binds, in its conditional blocks too."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                names.add(name)
            case ast.If() | ast.Try() | ast.With():
                for block in ("body", "orelse", "finalbody"):
                    names |= defined_names(getattr(node, block, []))
                for handler in getattr(node, "handlers", []):
                    names |= defined_names(handler.body)
    return names
