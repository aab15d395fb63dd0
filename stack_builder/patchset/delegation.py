"""A patch made from what is known of a class: a wrapper that should hand calls on to its inner object."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping

from stack_builder.patchset.model import Patch, parse


def from_delegation(
    *, patch_id: str, distribution: str, version: str, file: str, cls: str, methods: Mapping[str, str], reason: str
) -> Patch:
    """Write the patch that gives a class methods it lacks.

    Args:
        patch_id: the patch's id and file name.
        distribution: normalised name, such as ``sglang``.
        version: the one version it was derived from.
        file: module that defines the class, relative to site-packages.
        cls: the class, at module level.
        methods: name -> source of the ``def`` statement, four spaces per level, indented or not.
        reason: why the class needs them.

    Raises:
        UsageError: the data does not make a valid patch.
    """
    title = textwrap.shorten(f"{cls}: hand {', '.join(methods)} on", 120)
    text = "\n\n".join(textwrap.dedent(source).strip("\n") for source in methods.values())
    lines = [
        f"id = {_quoted(patch_id)}",
        f"title = {_quoted(title)}",
        f"reason = {_quoted(reason)}",
        f"scope = {_quoted(f'Only {cls}; a method that it has already stays as it is.')}",
        f"reference = {_quoted(f'derived from the sources of {distribution} {version}')}",
        f"removal = {_quoted(f'when {cls} has these methods upstream')}",
        f"distribution = {_quoted(distribution)}",
        f"versions = {_quoted(f'=={version}')}",
        "",
        "[[operation]]",
        'op = "ensure-methods"',
        f"file = {_quoted(file)}",
        f"class = {_quoted(cls)}",
        f"text = '''\n{text}\n'''",
        "",
        "[[upstream]]",
        f"file = {_quoted(file)}",
        f"class = {_quoted(cls)}",
        f"methods = {json.dumps(list(methods))}",
    ]
    return parse("\n".join(lines) + "\n", f"patch for {cls}")


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's, but DEL has to be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
