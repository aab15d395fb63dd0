"""Source edits: what Python makes of the result, and that no other byte moves."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack_builder.patchset.operations import EnsureDictKey, EnsureMethods, ReplaceText
from stack_builder.patchset.source import AnchorError


def ensure_key(table: str, **more: object) -> EnsureDictKey:
    return EnsureDictKey.model_validate({"op": "ensure-dict-key", "file": "a.py", "dict": table, "key": 12, **more})


def ensure_methods(cls: str, text: str) -> EnsureMethods:
    return EnsureMethods.model_validate({"op": "ensure-methods", "file": "a.py", "class": cls, "text": text})


def replace_text(old: str, new: str) -> ReplaceText:
    return ReplaceText.model_validate({"op": "replace-text", "file": "a.py", "old": old, "new": new})


def run(source: bytes) -> dict[str, object]:
    """What the module defines when Python runs it: the judge of every edit."""
    space: dict[str, object] = {}
    exec(compile(source, "a.py", "exec"), space)
    return space


def only_adds(before: bytes, after: bytes) -> bool:
    """Is every byte of ``before`` there, in order?"""
    rest = iter(after)
    return all(any(byte == other for other in rest) for byte in before)


LAYOUTS = {
    "one entry a line": b"T = {\n    9: [1],\n    10: [2, 3],\n}\n",
    "no last comma": b"T = {\n    9: [1],\n    10: [2, 3]\n}\n",
    "comment behind the last entry": b"T = {\n    9: [1],\n    10: [2, 3]  # note, with a comma\n}\n",
    "comments before the brace": b"T = {\n    10: [2, 3],\n    # 11: never made\n}\n",
    "one line": b"T = {9: [1], 10: [2, 3]}\n",
    "one line, last comma": b"T = {9: [1], 10: [2, 3],}\n",
    "brace behind the last entry": b"T = {9: [1],\n     10: [2, 3]}\n",
    "two entries on the last line": b"T = {\n    8: [], 9: [1],\n    11: [4], 10: [2, 3],  # note\n}\n",
    "not the last entry": b"T = {\n    10: [2, 3],\n    9: [1],\n}\n",
    "value in parentheses": b"T = {\n    9: [1],\n    10: ([2, 3]),\n}\n",
    "value over several lines": b"T = {\n    10: [\n        2,  # two\n        3,\n    ],\n}\n",
    "line ends of Windows": b"T = {\r\n    9: [1],\r\n    10: [2, 3],\r\n}\r\n",
    "tabs": b"T = {\n\t9: [1],\n\t10: [2, 3],\n}\n",
    "byte order mark": b"\xef\xbb\xbfT = {\n    10: [2, 3],\n}\n",
    "latin-1": b"# -*- coding: latin-1 -*-\n# caf\xe9\nT = {\n    10: [2, 3],  # \xe9\n}\n",
    "wide characters before it": "s = '\u00e4\U0001f600'; T = {10: [2, 3]}  # \u00e4\n".encode(),
    "no newline at the end": b"T = {\n    10: [2, 3],\n}",
    "annotated": b"T: dict[int, list[int]] = {\n    10: [2, 3],\n}\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("more", [{"copy_from": 10}, {"value": "[2, 3]"}], ids=["copied", "given"])
def test_a_key_is_added_in_every_layout(layout: str, more: dict[str, object]) -> None:
    before = LAYOUTS[layout]
    operation = ensure_key("T", **more)
    after = operation.apply(before)
    old, new = run(before)["T"], run(after)["T"]
    assert isinstance(old, dict)
    assert new == {**old, 12: [2, 3]}
    assert only_adds(before, after)
    assert operation.apply(after) == after
    assert after.count(b"\r") == (after.count(b"\n") if b"\r" in before else 0)


def test_a_copied_entry_keeps_its_comments_and_the_other_lines_stay() -> None:
    before = b"MiB = 1\nT = {\n    9: 1,\n    10: {\n        2: 64 * MiB,  # small\n    },\n}\nrest = 1\n"
    after = ensure_key("T", copy_from=10).apply(before)
    added = b"    12: {\n        2: 64 * MiB,  # small\n    },\n"
    assert after == before.replace(b"}\nrest", added + b"}\nrest")


def test_a_key_of_a_class_is_added() -> None:
    before = b"class C:\n    T = {\n        10: [6, 8],\n    }\n\n    def f(self):\n        T = {}\n        return T\n"
    after = ensure_key("C.T", copy_from=10).apply(before)
    assert run(after)["C"].T == {10: [6, 8], 12: [6, 8]}  # type: ignore[attr-defined]


def test_an_empty_dictionary_takes_a_key() -> None:
    assert run(ensure_key("T", value="1").apply(b"T = {}\n"))["T"] == {12: 1}


def test_a_key_that_is_there_stays_whatever_its_value() -> None:
    before = b"T = {10: 1, 12: 99}\n"
    assert ensure_key("T", copy_from=10).apply(before) == before


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"X = {10: 1}\n", "assigned 0 times"),
        (b"T = {10: 1}\nT = {10: 2}\n", "assigned 2 times"),
        (b"T = dict([(10, 1)])\n", "not a dictionary display"),
        (b"T = {**X, 10: 1}\n", "unpacks another"),
        (b"T = {11: 1}\n", "no key 10 to copy"),
        (b"T = {True: 1, 10.0: 2}\n", "no key 10 to copy"),
        (b"T = {\n", "does not parse"),
        (b"T = {10: 1}\0\n", "does not parse"),
        (b"\xff\xfe", "cannot be decoded"),
        (b"# coding: klingon\nT = {10: 1}\n", "cannot be decoded"),
    ],
)
def test_a_dictionary_that_is_not_as_expected_is_refused(source: bytes, why: str) -> None:
    with pytest.raises(AnchorError, match=why):
        ensure_key("T", copy_from=10).apply(source)


def test_a_source_nested_too_deeply_is_refused() -> None:
    with pytest.raises(AnchorError, match="does not parse"):
        ensure_key("T", copy_from=10).apply(b"T = " + b"(" * 100_000 + b")" * 100_000 + b"\n")


@given(
    entries=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 99)), max_size=5),
    comma=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    break_before=st.sampled_from(["", "\n", "  # c,}\n", "\n\n"]),
    break_between=st.sampled_from([", ", ",\n  ", ",  # {\n    ", " ,\n"]),
)
def test_any_layout_gains_exactly_the_key(
    entries: list[tuple[int, int]], comma: bool, end: str, break_before: str, break_between: str
) -> None:
    body = break_between.join(f"{key}: {value}" for key, value in entries) + ("," if comma and entries else "")
    before = f"T = {{{break_before}  {body}{break_before}}}\nlast = 1".replace("\n", end).encode()
    after = ensure_key("T", value="[1]").apply(before)
    assert run(after) | {"__builtins__": None} == run(before) | {"T": dict(entries) | {12: [1]}, "__builtins__": None}
    assert only_adds(before, after)


CLASS = b"class A:\n    x = 1\n\n    def one(self):\n        return 1  # kept\n\n\nclass B:\n    pass\n"
TWO = "def two(self, n=1):\n    return n + 1\n"


def test_a_method_is_added_at_the_end_of_its_class() -> None:
    after = ensure_methods("A", TWO).apply(CLASS)
    assert after == CLASS.replace(b"# kept\n", b"# kept\n\n    def two(self, n=1):\n        return n + 1\n")
    assert run(after)["A"]().two(4) == 5  # type: ignore[operator]
    assert ensure_methods("A", TWO).apply(after) == after


@pytest.mark.parametrize(
    "source",
    [
        b"class A:\n    x = 1",
        b"class A:\n\tx = 1\n",
        b"class A:\r\n    x = 1\r\n",
        b"class A:\n  def one(self):\n    return 1\n# end\n",
        b"if True:\n    pass\n\nclass A:\n    '''only a docstring'''\n",
        b'class A:\n    x = """\nlast line"""  # comment\n\nA\n',
        b"class A:\n    @property\n    def p(self): return 1\n",
    ],
)
def test_methods_take_the_form_of_their_class(source: bytes) -> None:
    after = ensure_methods("A", TWO).apply(source)
    assert run(after)["A"]().two(4) == 5  # type: ignore[operator]
    assert only_adds(source, after)
    assert (b"\t\t" in after) == (b"\t" in source)
    assert after.count(b"\r\n") == (after.count(b"\n") if b"\r" in source else 0)


def test_only_missing_methods_are_added_and_conditional_ones_count() -> None:
    source = b"class A:\n    if True:\n        def two(self):\n            return 2\n"
    after = ensure_methods("A", TWO + "\ndef three(self):\n    return 3\n").apply(source)
    names = [node.name for node in ast.walk(ast.parse(after)) if isinstance(node, ast.FunctionDef)]
    assert sorted(names) == ["three", "two"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"class B:\n    pass\n", "defined 0 times"),
        (b"class A:\n    pass\nclass A:\n    pass\n", "defined 2 times"),
        (b"class A: pass\n", "line of its header"),
    ],
)
def test_a_class_that_is_not_as_expected_is_refused(source: bytes, why: str) -> None:
    with pytest.raises(AnchorError, match=why):
        ensure_methods("A", TWO).apply(source)


@pytest.mark.parametrize("text", ["x = 1\n", "def f(self)\n", "", "import os\ndef f(self): ...\n"])
def test_an_ensured_method_is_nothing_but_a_method(text: str) -> None:
    with pytest.raises(ValueError, match=r"text|String"):
        ensure_methods("A", text)


def test_a_text_is_replaced_once() -> None:
    operation = replace_text("f()\n", "f(\n    1\n)\n")
    assert operation.apply(b"def f(*a): ...\nf()\n") == b"def f(*a): ...\nf(\n    1\n)\n"
    assert operation.apply(b"def f(*a): ...\r\nf()\r\n") == b"def f(*a): ...\r\nf(\r\n    1\r\n)\r\n"


def test_a_text_that_keeps_its_anchor_is_replaced_once_however_often() -> None:
    operation = replace_text("a = 1\n", "a = 1\nb = 2\n")
    once = operation.apply(b"a = 1\nc = 3\n")
    assert once == b"a = 1\nb = 2\nc = 3\n"
    assert operation.apply(once) == once


def test_a_text_is_cut_out_once() -> None:
    operation = replace_text("a = 1\nb = 2\n", "a = 1\n")
    assert operation.apply(b"a = 1\nb = 2\nc = 3\n") == b"a = 1\nc = 3\n"
    assert operation.apply(b"a = 1\nc = 3\n") == b"a = 1\nc = 3\n"


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"f(0)\n", "occurs 0 times"),
        (b"f( )\n", "occurs 0 times"),  # no fuzz
        (b"f()\nf()\n", "occurs 2 times"),
    ],
)
def test_a_text_that_does_not_occur_once_is_refused(source: bytes, why: str) -> None:
    with pytest.raises(AnchorError, match=why):
        replace_text("f()", "f(1)").apply(source)


def test_a_replacement_that_breaks_the_module_is_refused() -> None:
    with pytest.raises(AnchorError, match="does not parse"):
        replace_text("f()", "f(").apply(b"f()\n")
