import dataclasses
import io
import json
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from stack_builder import resources
from stack_builder.diagnose import catalogue
from stack_builder.errors import UsageError
from stack_builder.report import Finding, Report, Severity, Skipped, Target
from stack_builder.report.json import from_json, to_json
from stack_builder.report.sarif import to_sarif
from stack_builder.report.text import render_text
from stack_builder.terminal import printable

SARIF_SCHEMA = Path(__file__).parent / "data" / "sarif-schema-2.1.0.json"  # OASIS, errata 01, without descriptions

NOTE = Finding("LOG002", Severity.NOTE, "Something to know")
ERROR = Finding(
    "ABI001",
    Severity.ERROR,
    "Symbols of torch are missing",
    detail="2 symbols that this object imports are exported by no library of torch 2.10.0.",
    object="sgl_kernel/sm 100/common_ops.abi3.so",
    distribution="sgl-kernel 0.3.21",
    cause="torch_minor_abi_mismatch",
    evidence={
        "symbols": ["_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib", "_ZN3c1013MessageLoggerC1EPKciib"],
        "lines": [{"line": 7, "text": "undefined symbol"}, {"line": 9, "text": "\x1b[31mred"}],
        "weak": False,
        "ratio": 0.5,
        "unknown": None,
    },
    fix=("install torch 2.9.1", "or install sglang-kernel 0.4.3"),
)
REPORT = Report(
    Target("venv", "/opt/venv"),
    findings=(NOTE, ERROR),
    skipped=(Skipped("HOST001", "no NVIDIA driver is visible"),),
    facts={"torch": "2.10.0", "objects": 214},
)
REPORTS = [REPORT, Report(Target("log", "a b.log"), findings=(NOTE,)), Report(Target("stack", "x"), (), REPORT.skipped)]


def text(report: Report, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    render_text(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("report", REPORTS)
def test_json_satisfies_the_published_schema(report: Report) -> None:
    schema = json.loads((resources.checks() / "schemas" / "report-1.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(to_json(report)))


@pytest.mark.parametrize("report", REPORTS)
def test_sarif_satisfies_the_oasis_schema(report: Report) -> None:
    schema = json.loads(SARIF_SCHEMA.read_text())
    jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
        json.loads(to_sarif(report, catalogue.rules().values()))
    )


def test_sarif_points_at_file_and_lines() -> None:
    run = json.loads(to_sarif(REPORT))["runs"][0]
    result = next(result for result in run["results"] if result["ruleId"] == "ABI001")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "ABI001"
    places = [location["physicalLocation"] for location in result["locations"]]
    assert {place["artifactLocation"]["uri"] for place in places} == {"sgl_kernel/sm%20100/common_ops.abi3.so"}
    assert [place["region"]["startLine"] for place in places] == [7, 9]
    assert run["invocations"][0]["toolExecutionNotifications"][0]["associatedRule"]["id"] == "HOST001"


@pytest.mark.parametrize("report", REPORTS)
def test_json_reads_back_equal(report: Report) -> None:
    assert to_json(from_json(to_json(report))) == to_json(report)
    assert from_json(to_json(report)).findings == report.findings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema version 2"),
        ({"verdict": "pass"}, "does not follow"),
        ({"surprise": 1}, "surprise"),
        ({"findings": [{}]}, "findings.0.rule"),
    ],
)
def test_json_that_is_not_a_report_is_refused(change: dict[str, object], message: str) -> None:
    body = {**json.loads(to_json(REPORT)), **change}
    with pytest.raises(UsageError, match=message):
        from_json(json.dumps(body), "facts.json")


def test_text_leads_with_verdict_and_first_step() -> None:
    lines = text(REPORT).splitlines()
    assert lines[0] == "venv:/opt/venv: 1 error, 1 note, 1 rule skipped"
    assert lines[1] == "First: install torch 2.9.1"
    assert lines.index("ERROR") < lines.index("NOTE") < lines.index("SKIPPED (not checked is not passed)")


def test_fixes_that_several_findings_share_stand_once() -> None:
    other = dataclasses.replace(ERROR, object="other/sm90/common_ops.abi3.so", distribution="other 1")
    mended_otherwise = dataclasses.replace(ERROR, fix=("install torch 2.9.1",))
    third = dataclasses.replace(other, distribution="third 1")
    page = text(Report(Target("venv", "/opt/venv"), (ERROR, other, mended_otherwise, third)))
    assert page.count("fix 2: or install sglang-kernel 0.4.3") == 2  # "above" is the last one of the rule
    assert page.count("fix: as for ABI001 above") == 1
    assert page.count("fix: install torch 2.9.1") == 1


def test_objects_of_one_distribution_with_one_cause_and_one_fix_stand_together() -> None:
    other = dataclasses.replace(ERROR, object="sgl_kernel/sm90/common_ops.abi3.so")
    page = text(Report(Target("venv", "/opt/venv"), (ERROR, other)))
    assert "2 errors" in page.splitlines()[0]
    assert page.count(f"{ERROR.rule}  ") == 1
    assert "likewise: sgl_kernel/sm90/common_ops.abi3.so" in page


def test_text_is_plain_when_piped_and_breaks_no_symbol() -> None:
    page = text(REPORT, width=60)
    assert page.replace("\N{REPLACEMENT CHARACTER}", "").isascii()
    assert "\x1b" not in page
    assert "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib" in page
    assert all(len(line) <= 60 or " " not in line.strip() for line in page.splitlines())


@pytest.mark.parametrize("hostile", ["\x1b]0;title\x07", "a\rb", "\u202egnp.exe", "\x9b31m", "\x00"])
def test_no_control_character_reaches_the_terminal(hostile: str) -> None:
    finding = Finding(
        hostile, Severity.ERROR, hostile, hostile, hostile, hostile, hostile, {hostile: [hostile]}, (hostile,)
    )
    report = Report(Target("venv", hostile), (finding,), (Skipped(hostile, hostile),), {hostile: hostile})
    assert set(text(report)) - {"\n"} <= {c for c in text(report) if c.isprintable()}
    assert printable(hostile).isprintable()


def test_markup_in_data_is_shown_as_it_stands() -> None:
    assert "[red]x[/red]" in text(Report(Target("log", "x"), (Finding("LOG001", Severity.ERROR, "[red]x[/red]"),)))


def test_an_incomplete_report_does_not_read_as_a_pass() -> None:
    assert "not everything could be checked" in text(REPORTS[2]).splitlines()[0]
    assert "nothing is wrong" in text(Report(Target("stack", "x"))).splitlines()[0]
