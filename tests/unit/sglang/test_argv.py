"""Launch lines are parsed as the real argparse parses them."""

from __future__ import annotations

import argparse
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack_builder.sglang import argv
from stack_builder.sglang.argv import Kind
from stack_builder.sglang.options import Option, OptionTable

TABLE = OptionTable(
    "1",
    (
        Option(("--model-path", "--model"), "model_path", required=True),
        Option(("--tp-size", "--tensor-parallel-size"), "tp_size", type="int", default=1),
        Option(("--mode",), "mode", choices=("a", "b"), default="a"),
        Option(("--graph-bs-decode",), "graph_bs", nargs="+", type="int"),
        Option(("--graph-bs-prefill",), "graph_bs_prefill", nargs="*", type="int"),
        Option(("--level",), "level", nargs="?", type="int", const=7),
        Option(("--fast",), "fast", action="store_true", nargs=0, type=None, default=False, const=True),
        Option(
            ("--warm", "--no-warm"), "warm", action="boolean_optional", nargs=0, type=None, default=True, const=True
        ),
        Option(("--scale",), "scale", type="float", default=1.0),
    ),
)


class RefusedError(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise RefusedError(message)


def real_parser() -> Parser:
    parser = Parser(add_help=False)
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--mode", choices=("a", "b"), default="a")
    parser.add_argument("--graph-bs-decode", dest="graph_bs", nargs="+", type=int)
    parser.add_argument("--graph-bs-prefill", nargs="*", type=int)
    parser.add_argument("--level", nargs="?", type=int, const=7)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--warm", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--scale", type=float, default=1.0)
    return parser


VALUES = ["1", "2", "a", "b", "m", "-", "--", "-1", "-0.5", "1.5", "-x", "a b", "--x=1", "--unknown"]
NAMES = [
    "--model-path",
    "--model",
    "--tp-size",
    "--mode",
    "--graph-bs-decode",
    "--level",
    "--fast",
    "--warm",
    "--no-warm",
]
PREFIXES = ["--mod", "--tp", "--t", "--tensor", "--graph-bs", "--graph-bs-p", "--fa", "--no", "--scale", "--le"]
ATTACHED = ["--tp-size=4", "--mode=b", "--mode=c", "--fast=1", "--level=3", "--scale=-2", "--graph-bs-d=5", "--model="]
WORDS = st.sampled_from(VALUES + NAMES + PREFIXES + ATTACHED)
DESTS = {o.dest: o.name for o in TABLE.options}


@given(st.lists(WORDS, max_size=7), st.booleans())
def test_accepts_and_understands_what_argparse_does(words, with_model):
    arguments = [*(["--model", "m"] if with_model else []), *words]
    line = argv.parse(arguments, TABLE)
    try:
        real = vars(real_parser().parse_args(arguments))
    except RefusedError:
        real = None
    assert (real is None) == bool(line.problems), f"argparse makes {real} of {arguments}"
    if real is not None:
        assert {dest: line.value(name) for dest, name in DESTS.items()} == real


def test_goes_on_after_a_mistake():
    line = argv.parse(
        ["--unknown", "3", "--tp", "x", "--mode", "c", "--graph-bs", "1", "pos", "--scale", "--fast=1"], TABLE
    )
    assert [(p.kind, p.token) for p in line.problems] == [
        (Kind.UNKNOWN, "--unknown"),
        (Kind.BAD_TYPE, "--tp x"),
        (Kind.BAD_CHOICE, "--mode c"),
        (Kind.AMBIGUOUS, "--graph-bs"),
        (Kind.NO_VALUE, "--scale"),
        (Kind.NEEDLESS_VALUE, "--fast=1"),
        (Kind.MISSING, "--model-path"),
    ]
    assert line.problems[3].candidates == ("--graph-bs-decode", "--graph-bs-prefill")


def test_names_what_was_written_and_what_it_stands_for():
    line = argv.parse(["--model", "m", "--tensor=2"], TABLE)
    (_, given_tp) = line.given
    assert (given_tp.spelled, given_tp.name, given_tp.value) == ("--tensor", "--tensor-parallel-size", 2)
    assert line.spelling("--tp-size") == "--tensor"
    assert line.is_given("--tp-size")
    assert not line.is_given("--scale")
    assert line.value("--not-there") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("1k", 1000), ("25.6k", 25600), ("1Ki", 1024), ("2Gi", 2 << 30), ("-1", -1), (" 3M ", 3_000_000)],
)
def test_human_readable_numbers_as_sglang_documents_them(text, value):
    assert argv.convert(text, "human_readable_int") == value


@pytest.mark.parametrize("text", ["1.5Ki", "1K", "ki", "", "1kk"])
def test_human_readable_numbers_refused(text):
    with pytest.raises(ValueError):
        argv.convert(text, "human_readable_int")


def test_json_values():
    assert argv.convert('{"a": [1]}', "json.loads") == {"a": [1]}
    assert argv.convert("None", "nullable_str") is None
    for bad in ("{", "[" * 100_000):
        with pytest.raises(ValueError):
            argv.convert(bad, "json.loads")
    assert json.loads("1") == argv.convert("1", "json_list_type")
