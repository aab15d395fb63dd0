"""Taking out of a report what names a person, a machine or a secret: reports are made to be pasted into issues.

What a log or a path of a target holds is quoted as evidence, so this looks at every text of a report: home folders,
user and host name, credentials in URLs, tokens in the forms of the field, and the values of environment variables whose
names speak of a secret.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import replace

from stack_builder.report.model import Finding, Json, Report, Skipped, Target

HIDDEN = "[redacted]"
_LEAST = 6  # characters of a value or name that is looked for anywhere; shorter ones are words
_COMMON = frozenset({"nobody", "root", "user", "ubuntu", "docker", "sglang", "localhost", "python", "server", "stackb"})

# Names of a secret, one list for variables of the environment and for what a text assigns. "token" is a word of the
# trade as well: counted in the plural, and with these before or behind it, it is no secret.
_SECRET_NAME = re.compile(
    r"(?i)secret|passw|passphrase|[_-]pwd$|(?-i:_PASS$)|credential|private|cookie|authorization|sessionid"
    r"|(?:api|access|auth|encryption|master|signing|ssh)[_.-]?key"
)
_TOKEN_NAME = re.compile(
    r"(?i)(?<!eos[_-])(?<!bos[_-])(?<!pad[_-])(?<!unk[_-])(?<!sep[_-])(?<!cls[_-])(?<!mask[_-])(?<!image[_-])"
    r"(?<!video[_-])(?<!audio[_-])(?<!stop[_-])(?<!per[_-])token(?!s|i[sz])"
    r"(?![\w.-]*(?:ids?|map|ratio|usage|type|num|count|len|length|limit|budget|size)$)"
)
_PLACE_NAME = re.compile(r"(?i)(?:file|path|dir|folder)s?$")  # where a secret lies is none

# Where a path starts: /srv/home/x is nobody's home. After an option's letter (-I/home/x), an escaped line end and a
# colour, one starts all the same.
_START = r"(?:(?<![\w.~-])|(?<=^-[A-Za-z])|(?<=[\s'\"=,]-[A-Za-z])|(?<=\\[nrt])|(?<=[\d\[]m))"
_HOMES = re.compile(rf"{_START}/(?:home|Users)/[^/\s:;,'\"<>|]+")
_WINDOWS_HOMES = re.compile(
    r"(?<![\w/])[A-Za-z]:(?P<slash>\\{1,2}|/)Users(?P=slash)"
    r"(?:[^\\/:*?'\"<>|\r\n]{1,80}(?=\\)|[^\\/\s:;,*?'\"<>|]+)"  # a name with spaces ends at a backslash
)
# Each character is looked at once, however long a line is: hence lookbehinds and possessive repeats.
_ASSIGNED = re.compile(r"(?P<name>(?<![\w.-])[\w.][\w.-]*+)(?P<between>\\?['\"]?[ \t]*(?:=>|[=:])[ \t]*)")
_OPTION = re.compile(r"(?P<name>(?<![\w-])--?[\w-]++)(?P<between>=|[ \t]++|\\?['\"],\s*)")
_VALUE = re.compile(r"(?P<quote>\\?['\"])(?P<quoted>(?:(?!(?P=quote))(?:\\.|.))*)|(?P<bare>[^\s'\"`]+)")
# Nothing, a reference to where it stands, or the type in a line of source: no secret.
_NO_VALUE = re.compile(
    r"(?i)(?:none|null|true|false|str|bytes|optional\[.*|\$\{.*|(?-i:\$[A-Z_]+)|(?:self|args|server_args|os)\..*"
    rf"|{re.escape(HIDDEN)})?[,;)\]}}]*$"
)
_NUMBER = re.compile(r"[\d.,%/)\]};]+$")
# What follows an option in a sentence or in a usage line, and is not its value.
_PROSE = re.compile(
    r"(?:[-<\[|(].*|KEY|TOKEN|API_KEY|TEXT|FILE|PATH|VALUE|STR|option|argument|without|instead|before|because|unless"
    r"|should|requires?|needs|(?=[^\d]*$).{1,5})[,.:;)\]}]*$"
)
_PATTERNS = (
    (re.compile(r"(?<=://)[^/\s@'\"]+(?=@)"), HIDDEN),  # user:password@
    (
        re.compile(
            r"\b(?:hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10,}|(?:sk-|ghp_|gho_|github_pat_|glpat-|nvapi-|xox[bp]-)[A-Za-z0-9_-]{10,})"
        ),
        HIDDEN,
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"), HIDDEN),
    (re.compile(r"(?s)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)((?:authorization|cookie)\\?['\"]?[ \t]*:[ \t]*\\?['\"]?)[^\s'\"][^\r\n'\"]*"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{6,}|(?<=basic )[A-Za-z0-9+/=]{12,}"), HIDDEN),
    # a prompt: user@host:~/folder$, [user@host folder]#
    (re.compile(r"(?<![\w.@/:-])[\w.-]++@[\w.-]++(?=[: ][^\s\]]*\]?[$#%](?:\s|$))"), HIDDEN),
)


def speaks_of_secret(name: str) -> bool:
    """Whether a variable, key or option of this name holds a secret; ``api-key-file`` and ``max_tokens`` do not."""
    if _PLACE_NAME.search(name):
        return False
    return bool(_SECRET_NAME.search(name) or _TOKEN_NAME.search(name))


def _without_values(text: str, names: re.Pattern[str]) -> str:
    """Hide what is assigned to a name that speaks of a secret, as ``name = value`` or as ``--name value``."""
    shown: list[str] = []
    at = 0
    for found in names.finditer(text):
        if found.start() < at or not speaks_of_secret(found["name"]):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None and _is_secret(found["name"], value, after_space=found["between"].isspace()):
            shown += (text[at : found.end()], value["quote"] or "", HIDDEN)
            at = value.end() - (len(value[0]) - len(value[0].rstrip(",;)]}")) if value["quote"] is None else 0)
    return "".join((*shown, text[at:]))


def _is_secret(name: str, value: re.Match[str], *, after_space: bool) -> bool:
    said = value["bare"] if value["quote"] is None else value["quoted"]
    if _NO_VALUE.match(said):
        return False
    if _NUMBER.match(said) and not _SECRET_NAME.search(name):  # "token: 96" counts
        return False
    return not (after_space and value["quote"] is None and _PROSE.match(said))


class Redactor:
    """Knows what must not be shown.

    Args:
        environ: of this process; values of variables with telling names are hidden.
        user: name of the user.
        host: name of this machine.
    """

    def __init__(self, environ: Mapping[str, str], user: str, host: str) -> None:
        home = environ.get("HOME", "").rstrip("/")
        self._home = re.compile(rf"{_START}{re.escape(home)}(?![\w-])" if len(home) > 1 else r"(?!)")
        values = [value for name, value in environ.items() if speaks_of_secret(name) and len(value) >= _LEAST]
        self._values = sorted(values, key=len, reverse=True)
        names = {name for name in (user, host) if len(name) > 1 and name.lower() not in _COMMON}
        forms = [_anywhere(name) if len(name) >= _LEAST else _as_a_name(name) for name in sorted(names)]
        self._names = re.compile("|".join(forms) or r"(?!)")

    @classmethod
    def here(cls) -> Redactor:
        """For the user and machine that this runs on."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a user without a name
            user = ""
        return cls(os.environ, user, socket.gethostname())

    def text(self, text: str) -> str:
        """Redact one text."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        text = _HOMES.sub("~", _WINDOWS_HOMES.sub("~", self._home.sub("~", text)))
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        text = _without_values(_without_values(text, _ASSIGNED), _OPTION)
        return self._names.sub(HIDDEN, text)

    def report(self, report: Report) -> Report:
        """Redact every text of a report; its verdict stays."""
        return replace(
            report,
            target=Target(report.target.kind, self.text(report.target.name)),
            findings=tuple(self._finding(finding) for finding in report.findings),
            skipped=tuple(Skipped(each.rule, self.text(each.reason)) for each in report.skipped),
            facts={key: self._json(value) for key, value in report.facts.items()},
        )

    def _finding(self, finding: Finding) -> Finding:
        return replace(
            finding,
            title=self.text(finding.title),
            detail=self.text(finding.detail),
            object=None if finding.object is None else self.text(finding.object),
            evidence={key: self._json(value) for key, value in finding.evidence.items()},
            fix=tuple(self.text(step) for step in finding.fix),
        )

    def _json(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._json(each) for each in value]
        if isinstance(value, dict):
            return {self.text(key): self._json(each) for key, each in value.items()}
        return value


def _anywhere(name: str) -> str:
    return rf"(?<!\w){re.escape(name)}(?!\w)"


def _as_a_name(name: str) -> str:
    """A short name is a word: it is one of a user or host beside an @, in a path, or where it is called that."""
    called = "|".join(
        rf"(?<={word}[=: ])" for word in ("user", "User", "USER", "host", "Host", "HOST", "LOGNAME", "name")
    )
    name = re.escape(name)
    return rf"(?:(?<=[@/\\])|{called}){name}(?![\w-])|(?<![\w.-]){name}(?=@)"
