"""The options of ``sglang.launch_server``, for any release, read from its source.

Three generations of definition exist: ``parser.add_argument`` calls (to 0.5.13), fields ``name: A[type, Arg(…)]`` of
``ServerArgs`` (0.5.14 to 0.5.17), and the same fields in namespace classes under ``arg_groups/fields`` (from 0.5.20).
The rules by which a field becomes an argument are those of ``arg_groups/arg_utils.py:add_cli_args_from_dataclass``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stack_builder.sglang.constants import UNKNOWN, ClassRef, Evaluator, dotted
from stack_builder.sglang.source import SERVER_ARGS, SourceError, SourceTree

SUPPRESS = "==SUPPRESS=="  # argparse.SUPPRESS: without the option nothing is stored

_DEPRECATED_HELP = re.compile(r"^\W*(?:note:\s*)?(?:--\S+ is )?deprecated\b", re.IGNORECASE)
_REPLACEMENT = re.compile(r"(?:\buse|favor of|alias (?:for|of))\s+`?(--[a-z][a-z0-9-]*(?:=\w+)?)", re.IGNORECASE)
_BARE = ("str", "int", "float")


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        names: option strings, the main one first.
        dest: name of the value in ``ServerArgs``.
        action: ``store``, ``store_true``, ``boolean_optional`` … or the name of SGLang's own action class.
        nargs: as argparse means it: None is one value, 0 none.
        type: ``str``, ``int``, ``float``, or the name of the function that converts; None for flags.
        choices: values it takes; None where any will do or they are unknown.
        default: JSON value; :data:`SUPPRESS` where nothing is stored.
        const: what an option without a value stores; for ``boolean_optional`` what the form without ``no-`` stores.
        required: must be given.
        deprecated: still taken, but with a warning.
        replacement: what to write instead of a deprecated option, as SGLang says it.
        help: SGLang's own text.
        unknown: names of fields above that static reading cannot tell.
    """

    names: tuple[str, ...]
    dest: str
    action: str = "store"
    nargs: str | int | None = None
    type: str | None = "str"
    choices: tuple[object, ...] | None = None
    default: object = None
    const: object = None
    required: bool = False
    deprecated: bool = False
    replacement: str | None = None
    help: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The main spelling."""
        return self.names[0]

    @property
    def takes_value(self) -> bool:
        """Whether a value may follow."""
        return self.nargs != 0


@dataclass(frozen=True)
class OptionTable:
    """All options of one release, by every spelling."""

    version: str
    options: tuple[Option, ...]
    _by_name: dict[str, Option] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for option in self.options:
            self._by_name.update(dict.fromkeys(option.names, option))

    def get(self, name: str) -> Option | None:
        """The option with exactly this spelling."""
        return self._by_name.get(name)

    def matching(self, prefix: str) -> tuple[str, ...]:
        """Spellings that argparse takes ``prefix`` for: itself, or all that begin with it."""
        if prefix in self._by_name:
            return (prefix,)
        return tuple(name for name in self._by_name if prefix.startswith("--") and name.startswith(prefix))

    @property
    def names(self) -> tuple[str, ...]:
        """Every spelling, sorted."""
        return tuple(sorted(self._by_name))


def read(tree: SourceTree) -> OptionTable:
    """Read the options of a release.

    Raises:
        SourceError: ``server_args.py`` defines no options in a way known here.
    """
    reader = _Reader(tree)
    options = tuple(reader.options())
    if not options:
        raise SourceError("defines no options that can be read", where=f"{tree.where}: {SERVER_ARGS}")
    return OptionTable(tree.version, options)


class _Reader:
    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.evaluator = Evaluator(tree)
        server_args = self.evaluator.name(SERVER_ARGS, "ServerArgs")
        if not isinstance(server_args, ClassRef):  # rebuilt by msgspec.defstruct from 0.5.20 on
            nodes = [n for n in tree.module(SERVER_ARGS).body if isinstance(n, ast.ClassDef) and n.name == "ServerArgs"]
            if not nodes:
                raise SourceError("has no class ServerArgs", where=f"{tree.where}: {SERVER_ARGS}")
            server_args = ClassRef(SERVER_ARGS, nodes[-1])
        self.server_args = server_args
        self.sources = [server_args, *self._namespaces()]

    def options(self) -> Iterator[Option]:
        """Fields first where the parser is made from them, then every ``add_argument`` call, as SGLang does."""
        body = next(
            (n for n in self.server_args.node.body if isinstance(n, ast.FunctionDef) and n.name == "add_cli_args"), None
        )
        if body is None:
            return
        calls = [n for n in ast.walk(body) if isinstance(n, ast.Call)]
        if any(dotted(call.func) == "add_cli_args_from_dataclass" for call in calls):
            fields = (option for source in self.sources for option in self._fields(source))
            yield from {option.dest: option for option in fields}.values()  # a field declared twice: the last one
        local = self._locals(body)
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                yield self._argument(call, local)

    def _namespaces(self) -> list[ClassRef]:
        """Classes that carry ``_NS_PATH``, in the folder that ``collect_input_fields`` reads from."""
        found = []
        for path in self.tree.paths("sglang/srt/arg_groups/fields"):
            for node in self.tree.module(path).body:
                if isinstance(node, ast.ClassDef) and any(
                    isinstance(s, ast.Assign) and dotted(s.targets[0]) == "_NS_PATH" for s in node.body
                ):
                    found.append(ClassRef(path, node))
        return found

    def _locals(self, body: ast.FunctionDef) -> dict[str, object]:
        local: dict[str, object] = {}
        for statement in body.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                local[statement.targets[0].id] = self.evaluator.evaluate(statement.value, SERVER_ARGS, local)
        return local

    # the old generation and what is left of it: parser.add_argument(…)

    def _argument(self, call: ast.Call, local: Mapping[str, object]) -> Option:
        names = tuple(str(self.evaluator.evaluate(a, SERVER_ARGS, local)) for a in call.args)
        keywords = {k.arg: k.value for k in call.keywords if k.arg}
        return self._option(names, keywords, SERVER_ARGS, local)

    def _option(
        self, names: tuple[str, ...], keywords: dict[str, ast.expr], path: str, local: Mapping[str, object]
    ) -> Option:
        values = {key: self._value(node, path, local) for key, node in keywords.items()}
        action, implied = self._action(keywords.get("action"), path)
        values = {**implied, **values}
        names = _with_negation(names) if action == "boolean_optional" else names
        help_text = _text(values.get("help"))
        replacement = values.get("new_flag") or _replacement_in(help_text)
        nargs, choices, default = values.get("nargs"), values.get("choices"), values.get("default")
        unknown = tuple(
            name for name, v in (("nargs", nargs), ("choices", choices), ("default", default)) if _is_unknown(v)
        )
        listed = None if "choices" in unknown else _json(choices)
        typed = nargs != 0 and action != "boolean_optional"
        return Option(
            names=names,
            dest=str(values.get("dest") or names[0].lstrip("-").replace("-", "_")),
            action=action,
            nargs=nargs if isinstance(nargs, str | int) else None,
            type=_type_name(keywords.get("type")) if typed else None,
            choices=tuple(listed) if isinstance(listed, list) else None,
            default=None if "default" in unknown else _json(default),
            const=_json(values.get("const_value", values.get("const"))),
            required=values.get("required") is True,
            deprecated=action.startswith("Deprecated") or bool(_DEPRECATED_HELP.match(help_text)),
            replacement=str(replacement) if replacement else None,
            help=help_text,
            unknown=unknown,
        )

    def _action(self, node: ast.expr | None, path: str) -> tuple[str, dict[str, object]]:
        """Name of an action, and the keyword values that it implies."""
        if node is None:
            return "store", {}
        if dotted(node).endswith("BooleanOptionalAction"):
            return "boolean_optional", {"nargs": 0, "const": True}
        if isinstance(node, ast.Constant):
            name = str(node.value)
            stores = {"store_true": True, "store_false": False}.get(name)
            default = None if stores is None else not stores
            return name, {"nargs": 0, "default": default, "const": stores} if name.startswith("store_") else {}
        cls = self.evaluator.evaluate(node, path, {})
        if not isinstance(cls, ClassRef):
            return dotted(node) or "unknown", {}
        return cls.node.name, {k: v for k, v in self._signature(cls).items() if k in ("nargs", "default", "const")}

    def _signature(self, cls: ClassRef) -> dict[str, object]:
        """Defaults of the parameters of an action class's ``__init__``."""
        for node in cls.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                parameters = node.args.args
                defaults = node.args.defaults
                paired = zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
                return {p.arg: self.evaluator.evaluate(d, cls.path, {}) for p, d in paired}
        return {}

    def _value(self, node: ast.expr, path: str, local: Mapping[str, object]) -> object:
        if dotted(node) == "argparse.SUPPRESS":
            return SUPPRESS
        if isinstance(node, ast.Call) and dotted(node.func) == "_declared_default":
            return self._declared_default(node)
        return self.evaluator.evaluate(node, path, local)

    def _declared_default(self, node: ast.Call) -> object:
        name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        for source in self.sources:
            if isinstance(name, str):
                value = self.evaluator.attribute_of_class(source, name)
                if value is not UNKNOWN:
                    return value
        return UNKNOWN

    # the new generations: name: A[type, Arg(…)] = default

    def _fields(self, source: ClassRef) -> Iterator[Option]:
        for node in source.node.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            annotation = node.annotation
            if isinstance(annotation, ast.Subscript) and dotted(annotation.value) in ("A", "Annotated"):
                parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
                option = self._field(node.target.id, parts, node.value, source.path)
                if option is not None:
                    yield option

    def _field(self, name: str, parts: list[ast.expr], default: ast.expr | None, path: str) -> Option | None:
        meta = self._metadata(parts[1:], path)
        if meta is None or _is_true(meta.get("no_cli")):
            return None
        flag = self._text_of(meta.get("cli_name"), path) or "--" + name.replace("_", "-")
        aliases = self.evaluator.evaluate(meta["aliases"], path, {}) if "aliases" in meta else []
        names = (flag, *(str(a) for a in aliases)) if isinstance(aliases, list) else (flag,)
        keywords = {"dest": ast.Constant(name), "help": meta.get("help", ast.Constant(""))}
        if default is not None:
            keywords["default"] = default
        if "action" in meta:
            keywords["action"] = meta["action"]
            extra = meta.get("action_kwargs")
            if isinstance(extra, ast.Dict):
                pairs = zip(extra.keys, extra.values, strict=True)
                keywords.update({str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)})
        else:
            keywords.update(self._by_type(parts[0], meta, has_default=default is not None))
        return self._option(names, keywords, path, {})

    def _metadata(self, parts: list[ast.expr], path: str) -> dict[str, ast.expr] | None:
        """Keywords of the first ``Arg(…)``, or a bare string as its help; None for a field that is no option."""
        for part in parts:
            if isinstance(part, ast.Call):
                if dotted(part.func) == "Arg":
                    positional = {"help": part.args[0]} if part.args else {}
                    return {**positional, **{k.arg: k.value for k in part.keywords if k.arg}}
            elif isinstance(self.evaluator.evaluate(part, path, {}), str):
                return {"help": part}
        return None

    def _text_of(self, node: ast.expr | None, path: str) -> str | None:
        value = None if node is None else self.evaluator.evaluate(node, path, {})
        return value if isinstance(value, str) else None

    def _by_type(self, node: ast.expr, meta: dict[str, ast.expr], *, has_default: bool) -> dict[str, ast.expr]:
        """``type``, ``nargs``, ``choices``, ``required`` or ``action`` that follow from a field's type."""
        inner, name, arguments = _unwrapped(node)
        parser = {"type": meta["type_parser"]} if "type_parser" in meta else {}
        choices = {"choices": meta["choices"]} if "choices" in meta else {}
        if name == "Literal":
            first = arguments[0] if arguments else None
            kind = type(first.value).__name__ if isinstance(first, ast.Constant) else "str"
            return {"choices": ast.List(arguments), "type": _bare(kind), **choices, **parser}
        if name.lower() == "list" and not parser:
            element = dotted(arguments[0]) if arguments else "str"
            return {"type": _bare(element), "nargs": meta.get("nargs", ast.Constant("+")), **choices}
        if dotted(inner) == "bool":
            return {"action": ast.Constant("store_true")}
        required = {} if has_default or "required" in meta else {"required": ast.Constant(value=True)}
        given: dict[str, ast.expr] = {key: meta[key] for key in ("nargs", "required") if key in meta}
        return {"type": _bare(dotted(inner)), **choices, **parser, **required, **given}


def _unwrapped(node: ast.expr) -> tuple[ast.expr, str, list[ast.expr]]:
    """A type without ``Optional`` or ``| None``: the node, the name of its generic, the arguments of that."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [
            side for side in (node.left, node.right) if not (isinstance(side, ast.Constant) and side.value is None)
        ]
        return _unwrapped(sides[0]) if len(sides) == 1 else (node, "", [])
    if not isinstance(node, ast.Subscript):
        return node, "", []
    name = dotted(node.value).rsplit(".", 1)[-1]
    arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name in ("Optional", "Union"):
        kept = [a for a in arguments if not (isinstance(a, ast.Constant) and a.value is None)]
        return _unwrapped(kept[0]) if len(kept) == 1 else (node, "", [])
    return node, name, list(arguments)


def _bare(name: str) -> ast.expr:
    return ast.Name(name if name in _BARE else "str")


def _type_name(node: ast.expr | None) -> str:
    return "str" if node is None else dotted(node) or "unknown"


def _with_negation(names: tuple[str, ...]) -> tuple[str, ...]:
    """``--x`` and ``--no-x``, in the order of ``argparse.BooleanOptionalAction``."""
    out: list[str] = []
    for name in names:
        out.append(name)
        if name.startswith("--"):
            out.append("--no-" + name[2:])
    return tuple(out)


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _text(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) and value != SUPPRESS else ""


def _replacement_in(text: str) -> str | None:
    if not _DEPRECATED_HELP.match(text):
        return None
    match = _REPLACEMENT.search(text)
    return match[1] if match else None


def _is_unknown(value: object) -> bool:
    if isinstance(value, list | tuple | set):
        return any(_is_unknown(item) for item in value)
    return value is UNKNOWN or not (value is None or isinstance(value, str | int | float | bool | dict))


def _json(value: object) -> object:
    if isinstance(value, set):
        return sorted(value, key=str)
    if isinstance(value, tuple):
        return list(value)
    return None if value is UNKNOWN else value
