from pathlib import Path

import pytest

from stack_builder import resources
from stack_builder.cli.app import run
from stack_builder.diagnose import catalogue
from stack_builder.errors import UsageError
from stack_builder.report import Severity

ENTRY = 'title = "A thing is wrong"\nseverity = "error"\nwhy = "It matters."\nfix = ["do this"]\nneeds = ["files"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``checks/`` in which a test writes one family."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors" / "causes.toml").write_text('[known]\nmeaning = "a known cause"\nfix = ["mend it"]\n')
    monkeypatch.setattr(resources, "checks", lambda: tmp_path)
    catalogue._family.cache_clear()
    catalogue._causes.cache_clear()
    yield tmp_path
    catalogue._family.cache_clear()
    catalogue._causes.cache_clear()


def test_every_rule_of_the_repository_is_valid() -> None:
    assert {"LOG001", "LOG003"} <= set(catalogue.rules())


def test_texts_come_from_the_catalogue_unless_given(folder: Path) -> None:
    (folder / "rules" / "abi.toml").write_text(f'[ABI001]\n{ENTRY}cause = "known"\n')
    finding = catalogue.finding("ABI001", object="x.so", detail="seen")
    assert (finding.title, finding.severity, finding.cause) == ("A thing is wrong", Severity.ERROR, "known")
    assert (finding.fix, finding.object, finding.detail) == (("do this",), "x.so", "seen")
    other = catalogue.finding("ABI001", fix=("do that",), severity=Severity.NOTE)
    assert (other.fix, other.severity) == (("do that",), Severity.NOTE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[ARCH001]\n{ENTRY}", "does not belong here"),
        (f"[ABI1]\n{ENTRY}", "does not belong here"),
        (f'[ABI001]\n{ENTRY}cause = "invented"\n', "unknown cause 'invented'"),
        (f"[ABI001]\n{ENTRY}colour = 1\n", "ABI001.colour"),
        ("[ABI001]\n" + ENTRY.replace('"error"', '"fatal"'), "ABI001.severity"),
        ("[ABI001\n", "not TOML"),
    ],
)
def test_a_malformed_family_is_refused_by_name(folder: Path, text: str, message: str) -> None:
    (folder / "rules" / "abi.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        catalogue.rule("ABI001")


@pytest.mark.parametrize("rule_id", ["ABI999", "ZZZ001", "../x001", "", "ABI001 "])
def test_an_unknown_rule_is_a_usage_error(rule_id: str) -> None:
    with pytest.raises(UsageError, match="no rule"):
        catalogue.finding(rule_id)


def test_rules_command_lists_and_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules"]) == 0
    assert "LOG001   error    A known error text\n" in capsys.readouterr().out
    assert run(["rules", "log001"]) == 0
    assert "Why: A line of the text" in capsys.readouterr().out
    assert run(["rules", "LOG999"]) == 2


def test_schemas_are_json_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    import jsonschema

    for document in ("report", "lock", "receipt"):
        assert run(["schema", document]) == 0
        schema = json.loads(capsys.readouterr().out)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["properties"]["schema_version"] == {"const": 1}


def test_a_lock_satisfies_the_schema_of_locks(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    import jsonschema

    assert run(["schema", "lock"]) == 0
    schema = json.loads(capsys.readouterr().out)
    locks = sorted(resources.lockfiles().glob("*/artifacts.json"))
    assert locks
    for path in locks:
        jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text()))


def test_an_unknown_document_is_a_usage_error() -> None:
    assert run(["schema", "poem"]) == 2


def test_every_rule_is_given_by_the_code_and_asked_for_by_a_test() -> None:
    root = Path(__file__).parents[3]
    tests = "".join(path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py"))
    sources = [*(root / "stack_builder").rglob("*.py"), *(root / "checks").rglob("*.toml")]
    code = "".join(path.read_text(encoding="utf-8") for path in sources if path.parent.name != "rules")
    assert [rule for rule in catalogue.rules() if f'"{rule}"' not in code] == []
    assert [rule for rule in catalogue.rules() if rule not in tests] == []
