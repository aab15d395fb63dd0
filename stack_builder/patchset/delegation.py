"""Patches made from what is known of a class: a wrapper model that should pass calls on to its inner model."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass

from stack_builder.errors import UsageError
from stack_builder.patchset.model import Patch, parse


@dataclass(frozen=True, slots=True)
class Delegation:
    """Methods that a class lacks and one of its attributes has.

    Attributes:
        distribution: normalised name, such as ``sglang``.
        version: the one version it was derived from.
        file: module that defines the class, relative to site-packages.
        cls: name of the class, at module level.
        attribute: the attribute that holds the inner object.
        methods: name -> parameters as the inner class writes them, without ``self``; annotations are dropped, as the
            wrapper's module need not import their names.
    """

    distribution: str
    version: str
    file: str
    cls: str
    attribute: str
    methods: Mapping[str, str]


def from_delegation(delegation: Delegation, *, patch_id: str, reason: str, reference: str) -> Patch:
    """Write the patch that adds the methods.

    Raises:
        UsageError: a parameter has a default that is not a literal, or the data does not make a valid patch.
    """
    text = "\n\n".join(
        _method(name, parameters, delegation.attribute) for name, parameters in delegation.methods.items()
    )
    names = json.dumps(list(delegation.methods))
    lines = [
        f"id = {_quoted(patch_id)}",
        f"title = {_quoted(f'{delegation.cls}: pass calls on to {delegation.attribute}'[:120])}",
        f"reason = {_quoted(reason)}",
        f"scope = {_quoted(f'Only {delegation.cls}; methods that it has already stay as they are.')}",
        f"reference = {_quoted(reference)}",
        f"removal = {_quoted(f'when {delegation.cls} has these methods upstream')}",
        f"distribution = {_quoted(delegation.distribution)}",
        f"versions = {_quoted(f'=={delegation.version}')}",
        "",
        "[[operation]]",
        'op = "ensure-methods"',
        f"file = {_quoted(delegation.file)}",
        f"class = {_quoted(delegation.cls)}",
        f"text = '''\n{text}\n'''",
        "",
        "[[upstream]]",
        f"file = {_quoted(delegation.file)}",
        f"class = {_quoted(delegation.cls)}",
        f"methods = {names}",
    ]
    return parse("\n".join(lines) + "\n", f"patch for {delegation.cls}")


def _method(name: str, parameters: str, attribute: str) -> str:
    try:
        function = ast.parse(f"def {name}(self, {parameters}): ...").body[0]
    except SyntaxError as error:
        raise UsageError(f"parameters of {name} do not parse: {parameters[:80]}") from error
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    for default in (*given.defaults, *(one for one in given.kw_defaults if one is not None)):
        try:
            ast.literal_eval(default)
        except ValueError as error:
            what = f"{name} has a default that is not a literal: {ast.unparse(default)}"
            raise UsageError(what, fix="write this patch by hand") from error
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    for argument in every:
        if argument is not None:
            argument.annotation = None
    passed = [argument.arg for argument in (*given.posonlyargs, *given.args)][1:]
    passed += [f"*{given.vararg.arg}"] if given.vararg else []
    passed += [f"{argument.arg}={argument.arg}" for argument in given.kwonlyargs]
    passed += [f"**{given.kwarg.arg}"] if given.kwarg else []
    call = f"self.{attribute}.{name}({', '.join(passed)})"
    return f"def {name}({ast.unparse(given)}):\n    return {call}"


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's, but DEL has to be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
