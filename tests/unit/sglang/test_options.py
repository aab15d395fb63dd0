"""Options of the three generations of definition, stated by hand; the real parser is the oracle in tests/real."""

from __future__ import annotations

import pytest

from stack_builder.sglang import options, release
from stack_builder.sglang.source import SourceError

FIELDS = """
from sglang.srt.arg_groups.arg_utils import A, Arg
CHOICES = ["x", "y"]
class Spec(msgspec.Struct):
    _NS_PATH = "spec"
    plain: A[str, "Help."] = "d"
    needed: A[int, Arg(help="Path.", aliases=["--also"])]
    flag: A[bool, "On."] = False
    maybe: A[Optional[float], Arg(cli_name="--other-name")] = None
    picked: A["Literal['a', 'b'] | None", "no"] = None
    literal: A[Literal["a", "b"], Arg(help="One.")] = "a"
    union: A[int | None, Arg(type_parser=human_readable_int)] = None
    many: A[List[int], Arg(choices=CHOICES)] = msgspec.field(default_factory=list)
    hidden: A[int, Arg(no_cli=True)] = 1
    runtime: Derived = 3
    both: A[bool, Arg(action=argparse.BooleanOptionalAction)] = True
    twice: A[int, "first"] = 1
    twice: A[int, "second"] = 2
"""
NEW = """
class ServerArgs:
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        parser.add_argument("--picky", choices=["auto"] + CHOICES, default=_declared_default("plain"))
        parser.add_argument("--gone", action=DeprecatedAliasStoreAction, new_flag="--plain", default=argparse.SUPPRESS)
CHOICES = unknowable()
"""


def test_add_argument_calls(make_tree):
    table = options.read(make_tree())
    model = table.get("--model")
    assert model is not None
    assert (model.name, model.dest, model.required, model.type) == ("--model-path", "model_path", True, "str")
    backend = table.get("--attention-backend")
    assert backend is not None
    assert backend.choices == ("triton", "flashinfer", "fa3", "extra")
    assert table.get("--tp-size").default == 1
    assert table.get("--cuda-graph-bs").nargs == "+"
    old = table.get("--old")
    assert (old.deprecated, old.replacement, old.takes_value) == (True, "--page-size", False)
    warm = table.get("--no-warm")
    assert (warm.names, warm.default, warm.takes_value) == (("--warm", "--no-warm"), True, False)


def test_annotated_fields_of_namespaces(make_tree):
    tree = make_tree({"sglang/srt/server_args.py": NEW, "sglang/srt/arg_groups/fields/spec.py": FIELDS})
    table = options.read(tree)
    got = {o.name: (o.type, o.nargs, o.choices, o.default, o.required, o.action) for o in table.options}
    assert got == {
        "--plain": ("str", None, None, "d", False, "store"),
        "--needed": ("int", None, None, None, True, "store"),
        "--flag": (None, 0, None, False, False, "store_true"),
        "--other-name": ("float", None, None, None, False, "store"),
        "--picked": ("str", None, None, None, False, "store"),
        "--literal": ("str", None, ("a", "b"), "a", False, "store"),
        "--union": ("human_readable_int", None, None, None, False, "store"),
        "--many": ("int", "+", ("x", "y"), [], False, "store"),
        "--both": (None, 0, None, True, False, "boolean_optional"),
        "--twice": ("int", None, None, 2, False, "store"),
        "--picky": ("str", None, None, "d", False, "store"),
        "--gone": ("str", None, None, "==SUPPRESS==", False, "DeprecatedAliasStoreAction"),
    }
    assert table.get("--picky").unknown == ("choices",)
    assert table.get("--other-name").dest == "maybe"
    assert table.get("--gone").replacement == "--plain"


@pytest.mark.parametrize("text", ["", "class ServerArgs: pass\n", "class ServerArgs:\n def add_cli_args(p): pass\n"])
def test_a_source_without_options_is_named(make_tree, text):
    with pytest.raises(SourceError, match=r"server_args\.py"):
        options.read(make_tree({"sglang/srt/server_args.py": text}))


def test_a_release_comes_back_from_the_cache_as_it_was(make_tree, private_cache):
    tree = make_tree()
    first = release.read(tree)
    (entry,) = (private_cache / "sglang").glob("release-*.json")
    written = entry.read_bytes()
    assert release.read(tree) == first
    entry.write_bytes(b"{")  # damaged: read anew
    assert release.read(tree) == first
    assert entry.read_bytes() == written
    assert first.speculation.request_cap == 48
    assert first.speculation.tree_backends == ("flashinfer", "fa3")
    assert first.speculation.overlap_variable is False
