"""Constants read statically equal what Python makes of the same source."""

from __future__ import annotations

import pytest

from stack_builder.sglang.constants import UNKNOWN, Evaluator

SNIPPET = """
import enum
class Backend:
    FULL = "full"
    OFF = "off"
    ALL = (FULL, OFF)
class Mode(enum.Enum):
    ONE = 1
    TWO = 2
class Derived(Backend):
    pass
LIST = ["a", "b"]
SUM = LIST + ["c"] + list(("d",))
TUPLE = (*LIST, "e")
NAMES = [m.name.lower() for m in Mode]
VALUES = [m.value for m in Mode]
KEYS = list({"x": object, "y": 2}.keys())
FIRST = LIST[0]
SHIFT = 3 * (1 << 10) - 1
NEGATIVE = -5
TEXT = "one " "two" + "!"
SET = set(LIST)
ORDERED = sorted({"b", "a"})
INHERITED = Derived.ALL
def helper():
    if unlikely():
        return None
    return list(LIST)
CALLED = helper()
"""
KNOWN = ["SUM", "TUPLE", "NAMES", "VALUES", "KEYS", "FIRST", "SHIFT", "NEGATIVE", "TEXT", "SET", "ORDERED", "INHERITED"]
KNOWN += ["CALLED"]


@pytest.fixture
def evaluator(make_tree):
    return Evaluator(make_tree({"sglang/srt/snippet.py": SNIPPET}))


@pytest.mark.parametrize("name", KNOWN)
def test_equals_python(evaluator, name):
    space = {"unlikely": lambda: False}
    exec(SNIPPET, space)
    assert evaluator.name("sglang/srt/snippet.py", name) == space[name]


def test_names_are_followed_through_imports(make_tree):
    tree = make_tree(
        {
            "sglang/srt/pack/__init__.py": "from .inner import N as M\n",
            "sglang/srt/pack/inner.py": "N = 7\n",
            "sglang/srt/user.py": "from sglang.srt.pack import M\nX = [M, M]\n",
        }
    )
    assert Evaluator(tree).name("sglang/srt/user.py", "X") == [7, 7]


@pytest.mark.parametrize(
    "text",
    [
        "X = torch.float16",
        "X = len(LIST)",
        "X = Y\nY = X",
        "from sglang.srt.snippet import X",
        "X = [x for x in LIST if x]",
        "X = 'a' * 10**9",
        "X = 1 << 10**9",
        "X = open('/etc/passwd').read()",
    ],
)
def test_what_is_not_constant_stays_unknown(make_tree, text):
    tree = make_tree({"sglang/srt/snippet.py": text + "\n"})
    value = Evaluator(tree).name("sglang/srt/snippet.py", "X")
    assert value is UNKNOWN
    with pytest.raises(TypeError):
        bool(value)
