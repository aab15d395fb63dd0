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
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL|PRIVATE", re.IGNORECASE)
_LEAST = 6  # characters of a value or name that is looked for; shorter ones are words
_COMMON = frozenset({"nobody", "ubuntu", "docker", "sglang", "localhost", "python", "server", "stackb"})
# Where a path starts: /srv/home/x is nobody's home. After an option's letter (-I/home/x), an escaped line end and a
# colour, one starts all the same.
_START = r"(?:(?<![\w.~-])|(?<=^-[A-Za-z])|(?<=[\s'\"=,]-[A-Za-z])|(?<=\\[nrt])|(?<=[\d\[]m))"
_HOMES = re.compile(rf"{_START}(?:/(?:home|Users)/[^/\s:;,'\"<>|]+|/root(?=[/\s:;,'\"]|$))")
_CALLED = r"(?:api[-_]key|token|password|secret)"
_PATTERNS = (
    (re.compile(r"(?<=://)[^/\s@'\"]+(?=@)"), HIDDEN),  # user:password@
    (re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|nvapi-|xox[bp]-)[A-Za-z0-9_-]{10,}"), HIDDEN),
    (re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{6,}|(?<=basic )[A-Za-z0-9+/=]{12,}"), HIDDEN),
    (
        # after a space only as an option's value: a log line has "token usage: 0.00"
        re.compile(rf"(?i)({_CALLED}['\"]?\s*[=:]\s*['\"]?|--[\w-]*{_CALLED}\s+['\"]?)(?!None\b)[^\s'\",)]{{6,}}"),
        rf"\1{HIDDEN}",
    ),
)


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
        values = [value for name, value in environ.items() if _SECRET_NAME.search(name) and len(value) >= _LEAST]
        self._values = sorted(values, key=len, reverse=True)
        names = {name for name in (user, host) if len(name) >= _LEAST and name.lower() not in _COMMON}
        self._names = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(names)) or r"(?!)")

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
        text = _HOMES.sub("~", self._home.sub("~", text))
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
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
