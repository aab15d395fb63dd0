"""A launch line, parsed as argparse would parse it against the options of any release.

Unlike argparse this goes on after a mistake, so that one look finds all of them. Semantics of Python 3.11's argparse:
unique prefixes of long options count, ``--name=value``, negative numbers are values, ``--`` ends options.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from stack_builder.sglang.options import SUPPRESS, Option, OptionTable

_NEGATIVE = re.compile(r"^-\d+$|^-\d*\.\d+$")
_WITH_SUFFIX = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)")
_SUFFIX = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_HELP = ("-h", "--help")
_END = "--"  # of options


class Kind(StrEnum):
    """What is wrong with a token."""

    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    NO_VALUE = "no value"
    NEEDLESS_VALUE = "needless value"
    BAD_TYPE = "bad type"
    BAD_CHOICE = "bad choice"
    POSITIONAL = "positional"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that argparse would refuse.

    Attributes:
        kind: what it is.
        token: as written on the line.
        option: the option concerned, where there is one.
        candidates: the spellings that an ambiguous prefix matches.
    """

    kind: Kind
    token: str
    option: Option | None = None
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """One option of the line.

    Attributes:
        spelled: as written, without the value.
        name: the spelling that argparse takes it for.
        option: what it is.
        value: converted.
    """

    spelled: str
    name: str
    option: Option
    value: object


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A parsed line.

    Attributes:
        table: the options of the release it was read against.
        given: in order.
        problems: in order.
    """

    table: OptionTable
    given: tuple[Given, ...]
    problems: tuple[Problem, ...]
    _values: dict[str, object] = field(repr=False, compare=False, default_factory=dict)

    def value(self, name: str) -> object:
        """What ``ServerArgs`` holds for an option, before SGLang adjusts it; None where this release has none."""
        option = self.table.get(name)
        return None if option is None else self._values.get(option.dest)

    def is_given(self, name: str) -> bool:
        """Whether the line sets what the option ``name`` sets, in any spelling."""
        return self._last(name) is not None

    def spelling(self, name: str) -> str:
        """How the line writes an option; ``name`` where it does not."""
        given = self._last(name)
        return name if given is None else given.spelled

    def _last(self, name: str) -> Given | None:
        option = self.table.get(name)
        dest = None if option is None else option.dest
        return next((g for g in reversed(self.given) if g.option.dest == dest), None)


def parse(arguments: Sequence[str], table: OptionTable) -> LaunchLine:
    """Parse the arguments after ``sglang.launch_server``. Never fails: what is wrong is in ``problems``."""
    reader = _Reader(table, list(arguments))
    reader.run()
    values = {o.dest: o.default for o in reversed(table.options) if o.default != SUPPRESS}
    values.update({g.option.dest: g.value for g in reader.given})
    seen = {g.option.dest for g in reader.given}
    missing = [Problem(Kind.MISSING, o.name, o) for o in table.options if o.required and o.dest not in seen]
    return LaunchLine(table, tuple(reader.given), tuple(reader.problems + missing), values)


def value_of(arguments: Sequence[str], *spellings: str) -> str | None:
    """The value that one option has on a launch line, whatever the release; the last one counts, as in argparse.

    For the few options that every release knows. :func:`parse` reads whole lines.
    """
    found = None
    for number, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option in spellings:
            found = value if equals else arguments[number + 1] if number + 1 < len(arguments) else found
    return found


class _Reader:
    def __init__(self, table: OptionTable, tokens: list[str]) -> None:
        self.table = table
        self.tokens = tokens
        self.at = 0
        self.given: list[Given] = []
        self.problems: list[Problem] = []

    def run(self) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token == _END:
                self.problems += [Problem(Kind.POSITIONAL, t) for t in self.tokens[self.at - 1 :]]
                return
            if not self._is_option(token):
                self.problems.append(Problem(Kind.POSITIONAL, token))
            elif token not in _HELP:
                self._option(token)

    def _is_option(self, token: str) -> bool:
        """As ``argparse.ArgumentParser._parse_optional`` decides."""
        if not token.startswith("-") or len(token) == 1:
            return False
        if self.table.get(token) or self.table.matching(token.split("=", 1)[0]):
            return True
        return not _NEGATIVE.match(token) and " " not in token

    def _option(self, token: str) -> None:
        spelled, equals, attached = token.partition("=")
        if self.table.get(token):
            spelled, equals, attached = token, "", ""
        names = self.table.matching(spelled)
        if len(names) != 1:
            kind = Kind.AMBIGUOUS if names else Kind.UNKNOWN
            self.problems.append(Problem(kind, spelled, candidates=names))
            if not equals:
                self._skip_values()
            return
        option = self.table.get(names[0])
        assert option is not None
        if not option.takes_value:
            if equals:
                self.problems.append(Problem(Kind.NEEDLESS_VALUE, token, option))
            stored = names[0] != option.name and names[0].startswith("--no-") and option.action == "boolean_optional"
            self.given.append(Given(spelled, names[0], option, False if stored else option.const))
            return
        texts = [attached] if equals else self._values(option)
        if not texts and option.nargs not in ("?", "*"):
            self.problems.append(Problem(Kind.NO_VALUE, spelled, option))
            return
        self._store(spelled, names[0], option, texts)

    def _store(self, spelled: str, name: str, option: Option, texts: list[str]) -> None:
        values = []
        for text in texts:
            try:
                value = convert(text, option.type)
            except ValueError:
                self.problems.append(Problem(Kind.BAD_TYPE, f"{spelled} {text}", option))
                return
            if option.choices is not None and value not in option.choices:
                self.problems.append(Problem(Kind.BAD_CHOICE, f"{spelled} {text}", option))
                return
            values.append(value)
        many = option.nargs in ("*", "+") or (isinstance(option.nargs, int) and option.nargs > 0)
        stored = values if many else values[0] if values else option.const
        if option.action == "DeprecatedStoreConstAction":  # whatever the value, it stores its own
            stored = option.const
        self.given.append(Given(spelled, name, option, stored))

    def _values(self, option: Option) -> list[str]:
        most = {"*": len(self.tokens), "+": len(self.tokens)}.get(str(option.nargs), 1)
        if isinstance(option.nargs, int):
            most = option.nargs
        start = self.at
        while self.at < len(self.tokens) and self.at - start < most and not self._ends_values(self.tokens[self.at]):
            self.at += 1
        return self.tokens[start : self.at]

    def _ends_values(self, token: str) -> bool:
        return token == _END or self._is_option(token)

    def _skip_values(self) -> None:
        """What follows an unknown option is its value: one mistake, one problem."""
        while self.at < len(self.tokens) and not self._ends_values(self.tokens[self.at]):
            self.at += 1


def convert(text: str, kind: str | None) -> object:
    """Convert a value as the option's type function does, for the types whose rules are known.

    Raises:
        ValueError: SGLang would refuse it.
    """
    match (kind or "str").rsplit(".", 1)[-1]:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "human_readable_int":  # sglang/srt/utils/common.py
            return _human_readable(text.strip())
        case "loads" | "json_list_type" | "parse_cuda_graph_config_arg":
            try:
                return json.loads(text)
            except RecursionError as error:
                raise ValueError("nested too deeply") from error
        case "nullable_str":
            return None if text in ("", "None") else text
        case _:
            return text


def _human_readable(text: str) -> int:
    match = _WITH_SUFFIX.fullmatch(text)
    if match is None:
        return int(text)
    number, suffix = match.groups()
    if suffix.endswith("i") and "." in number:
        raise ValueError("decimals with a binary suffix")
    return int(Decimal(number) * _SUFFIX[suffix])
