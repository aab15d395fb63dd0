"""JSON of unknown origin: RFC 8259, sections 6 and 8.2."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest

from stack_builder import jsontext


@pytest.mark.parametrize("text", ['["\\ud83d\\ude00"]', b'["\\uD83D\\uDE00"]', '["\U0001f600"]'])
def test_a_surrogate_pair_is_one_character(text: str | bytes) -> None:
    assert jsontext.loads(text) == ["\U0001f600"]


@pytest.mark.parametrize("text", ['["\\ud800"]', b'{"\\uDC00x": 1}', '["\\ude00\\ud83d"]'])
def test_half_of_one_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        jsontext.loads(text)


def test_a_backslash_before_the_u_is_no_escape() -> None:
    assert jsontext.loads('["\\\\ud800"]') == ["\\ud800"]


@dataclass(frozen=True)
class Row:
    name: str
    values: tuple[float, ...]


@pytest.mark.parametrize("indent", [None, 1, 2])
def test_what_is_written_is_what_the_standard_library_writes(indent: int | None) -> None:
    rows = [Row(f"é{number}", (number / 3, -0.0)) for number in range(3000)]  # more pieces than are joined at a time
    text = jsontext.dumps({"b": rows, "a": None}, indent=indent, compact=True, sort_keys=True)
    plain = {"a": None, "b": [{"name": row.name, "values": list(row.values)} for row in rows]}
    assert text == json.dumps(plain, indent=indent, separators=(",", ":"), ensure_ascii=False) + "\n"


def test_nothing_that_is_written_commands_a_terminal() -> None:
    text = jsontext.dumps({"\x9b31m": "a\u202eb\x1b[2J"})
    assert text == '{\n  "\\u009b31m": "a\\u202eb\\u001b[2J"\n}\n'
    assert json.loads(text) == {"\x9b31m": "a\u202eb\x1b[2J"}


def test_what_json_lacks_is_not_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsontext.dumps([math.inf])
    with pytest.raises(TypeError, match="set is nothing"):
        jsontext.dumps({1, 2})
