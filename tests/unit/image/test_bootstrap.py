"""What of the caller reaches the programs that make a base."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack_builder.image.base import bootstrap


@pytest.mark.parametrize(
    "name", ["PYTHONDONTWRITEBYTECODE", "PYTHONOPTIMIZE", "DEBIAN_FRONTEND", "PERL5OPT", "LANGUAGE", "TZ", "ANY_OTHER"]
)
def test_no_variable_that_maintainer_scripts_obey(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the first, five modules of a Debian base were compiled to different bytes."""
    monkeypatch.delenv(name, raising=False)
    without = bootstrap._environment(tmp_path)
    for value in ("", "0", "1"):
        monkeypatch.setenv(name, value)
        assert bootstrap._environment(tmp_path) == without
    assert without["PYTHONDONTWRITEBYTECODE"] == "1"
