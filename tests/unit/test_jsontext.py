"""JSON of unknown origin: RFC 8259, sections 6 and 8.2."""

from __future__ import annotations

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
