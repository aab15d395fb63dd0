"""Launch lines: every cross rule once right and once wrong, on releases made for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stack_builder.diagnose.sglang import launch
from stack_builder.report import Severity
from stack_builder.sglang import release
from stack_builder.sglang.gates import table
from stack_builder.sglang.options import Option, OptionTable

EAGLE = ["--model", "m", "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d"]
EAGLE += ["--max-running-requests", "64"]
THREE = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
EXTRA = (
    Option(("--speculative-adaptive",), "speculative_adaptive", "store_true", 0, None, default=False, const=True),
    Option(("--enable-pdmux",), "enable_pdmux", "store_true", 0, None, default=False, const=True),
    Option(
        ("--disable-overlap-schedule",), "disable_overlap_schedule", "store_true", 0, None, default=False, const=True
    ),
    Option(("--cuda-graph-max-bs-decode",), "cuda_graph_max_bs_decode", type="int"),
    Option(("--cuda-graph-max-bs-prefill",), "cuda_graph_max_bs_prefill", type="int"),
)


@pytest.fixture
def old(make_tree):
    """As 0.5.9: the overlap scheduler is off by default, there is no adaptive speculation."""
    return release.read(make_tree())


@pytest.fixture
def new(old):
    """As 0.5.14: adaptive speculation with rows by batch size, no SGLANG_ENABLE_SPEC_V2."""
    rules = replace(
        old.speculation,
        adaptive_rows={"1": (1, 3, 7), "8": (0, 1, 3), "64": (0,)},
        adaptive_excludes=("enable_pdmux",),
        overlap_variable=None,
        environment=(),
    )
    return release.Release("0.5.23", OptionTable("0.5.23", (*old.options.options, *EXTRA)), rules)


def found(arguments, known, **more):
    return {(f.rule, f.object) for f in launch.judge(arguments, known, **more)}


def test_a_good_line(new):
    assert found([*EAGLE, *THREE], new) == set()
    assert found(["--model", "m"], new) == set()


def test_an_unknown_option_that_was_removed_names_what_replaced_it(new):
    (finding,) = launch.judge(["--model", "m", "--speculative-ngram-branch-length", "4"], new)
    assert (finding.rule, finding.fix) == ("SGL001", ("write --speculative-ngram-max-trie-depth",))
    assert "0.5.9 is the last recorded release" in finding.detail


def test_an_option_that_is_newer(old):
    (finding,) = launch.judge(["--model", "m", "--speculative-draft-window-size", "4"], old)
    assert finding.rule == "SGL001"
    assert finding.fix[0] == "use SGLang 0.5.12 or newer"


def test_a_mistyped_option(old):
    (finding,) = launch.judge(["--model", "m", "--attention-backendd", "fa3"], old)
    assert finding.fix == ("did you mean --attention-backend?",)


def test_a_removed_option_that_is_now_an_ambiguous_prefix(new):
    (finding,) = launch.judge(["--model", "m", "--cuda-graph-max-bs", "64"], new)
    assert (finding.rule, finding.fix) == ("SGL002", ("write --cuda-graph-max-bs-decode",))


def test_values_and_deprecations(old):
    line = ["--model", "m", "--attention-backend", "nope", "--old", "--page-size", "x", "--attention", "fa3"]
    assert found(line, old) == {
        ("SGL003", "--attention-backend"),
        ("SGL003", "--page-size"),
        ("SGL004", "--old"),
        ("SGL005", "--attention"),
    }
    assert found([], old) == {("SGL006", "--model-path")}


@pytest.mark.parametrize(
    ("numbers", "rule"),
    [
        ("--speculative-num-steps 3", "SGL010"),
        ("--speculative-eagle-topk 1 --speculative-num-draft-tokens 4", "SGL010"),
        ("--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8", "SGL011"),
        ("", None),
    ],
)
def test_all_three_numbers_or_none(new, numbers, rule):
    assert {r for r, _ in found([*EAGLE, *numbers.split()], new)} == ({rule} if rule else set())


def test_trees_and_pages(old, new):
    wide = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8"]
    wide += ["--page-size", "16"]
    assert ("SGL012", "--speculative-eagle-topk") in found([*EAGLE, *wide, "--attention-backend", "triton"], new)
    assert found([*EAGLE, *wide, "--attention-backend", "fa3"], new) == set()


def test_the_cap_on_requests(new):
    uncapped = [a for a in EAGLE if a not in ("--max-running-requests", "64")]
    assert found([*uncapped, *THREE], new) == {("SGL013", "--max-running-requests")}
    (finding,) = launch.judge([*uncapped, *THREE], new)
    assert finding.title == "Concurrency is capped at 48"


def test_overlap(old, new):
    assert found([*EAGLE, *THREE], old) == {("SGL015", "--speculative-algorithm")}
    on = {"SGLANG_ENABLE_SPEC_V2": "1"}
    assert found([*EAGLE, *THREE], old, environment=on) == set()
    assert found([*EAGLE, *THREE], new, environment=on) == {("SGL017", "SGLANG_ENABLE_SPEC_V2")}
    wide = ["--speculative-num-steps", "3", "--speculative-eagle-topk", "2", "--speculative-num-draft-tokens", "4"]
    (finding,) = launch.judge([*EAGLE, *wide], old, environment=on)
    assert (finding.rule, finding.severity) == ("SGL015", Severity.ERROR)


def test_a_draft_is_needed(new):
    assert ("SGL016", "--speculative-algorithm") in found(["--model", "m", "--speculative-algorithm", "EAGLE3"], new)


def test_adaptive_speculation(new):
    line = [*EAGLE, "--speculative-adaptive"]
    assert found(line, new) == set()
    assert found([*line, "--speculative-eagle-topk", "2"], new) == {("SGL014", "--speculative-eagle-topk")}
    assert found([*line, "--enable-pdmux"], new) == {("SGL014", "--enable-pdmux")}
    assert found([*line, "--speculative-num-steps", "5"], new) == {("SGL014", "--speculative-num-steps")}
    assert found(["--model", "m", "--speculative-adaptive"], new) == {("SGL014", "--speculative-adaptive")}
    own = '{"1": {"candidate_steps": [5]}, "128": {"candidate_steps": [0]}}'
    (finding,) = launch.judge(line, new, adaptive=own)
    assert (finding.rule, finding.fix) == ("SGL018", ("set --max-running-requests 128 or more",))
    early = replace(new, speculation=replace(new.speculation, adaptive_needs_no_overlap=True, adaptive_rows={}))
    assert found(line, early) == {("SGL014", "--speculative-adaptive")}
    assert found([*line, "--disable-overlap-schedule"], early) == set()


@pytest.mark.parametrize(
    "text",
    [
        "garbage",
        "[1]",
        '"x"',
        "{}",
        '{"a": {}}',
        '{"1": 3}',
        '{"1": {"candidate_steps": []}}',
        '{"1": {"candidate_steps": [-1]}}',
        '{"1": {"candidate_steps": ["3"]}}',
    ],
)
def test_what_sglang_cannot_read_as_an_adaptive_configuration(new, text):
    findings = launch.judge([*EAGLE, "--speculative-adaptive"], new, adaptive=text)
    assert [finding.rule for finding in findings if finding.rule != "SGL013"] == ["SGL019"]


@pytest.mark.parametrize(
    ("option", "value", "wrong"),
    [
        ("--mem-fraction-static", "1.5", True),
        ("--mem-fraction-static", "0", True),
        ("--mem-fraction-static", "nan", True),
        ("--mem-fraction-static", "1.0", False),
        ("--mem-fraction-static", "0.05", False),
        ("--max-running-requests", "-3", True),
        ("--max-running-requests", "0", True),
        ("--max-running-requests", "1", False),
        ("--context-length", "0", True),
        ("--tp-size", "0", True),
    ],
)
def test_a_number_that_means_nothing(new, option, value, wrong):
    assert (("SGL007", option) in found(["--model", "m", f"{option}={value}"], new)) is wrong


FOUNDING = [*EAGLE, "--enable-flashinfer-allreduce-fusion", "--attention-backend", "flashinfer"]


@pytest.mark.parametrize(
    ("version", "rule", "severity"),
    [("0.5.9", "SGL020", "error"), ("0.5.13", "SGL021", "warning"), ("0.5.14", "SGL022", "error")],
)
def test_the_founding_line_against_the_record(old, version, rule, severity):
    gates = table.recorded(version)
    findings = launch.judge(FOUNDING, old, table=gates, gpu="sm_120")
    (finding,) = [f for f in findings if f.object == "--enable-flashinfer-allreduce-fusion"]
    assert (finding.rule, finding.severity) == (rule, severity)
    assert finding.evidence["feature"] == "flashinfer-allreduce-fusion"
    assert "sglang/srt/" in str(finding.evidence["at"])
    assert any("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" in text for text in finding.fix)


def test_gates_only_where_they_matter(old):
    gates = table.recorded("0.5.9")
    alone = [*FOUNDING, "--tp-size", "1"]
    rules = {f.rule for f in launch.judge(alone, old, table=gates, gpu="sm_120")}
    assert not rules & {"SGL020", "SGL021", "SGL022", "SGL023"}
    assert not {f.rule for f in launch.judge(FOUNDING, old, table=gates, gpu="sm_90")} & {"SGL020", "SGL024"}
    several = ["--model", "m", "--tp-size", "4"]
    notes = [f for f in launch.judge(several, old, table=gates, gpu="sm_120") if f.rule == "SGL024"]
    assert {f.evidence["feature"] for f in notes} == {"custom-all-reduce", "attention-default-mla", "deep-gemm"}
    assert {f.severity for f in notes} == {Severity.NOTE}
    off = {"SGLANG_ENABLE_JIT_DEEPGEMM": "0"}
    left = launch.judge([*several, "--attention-backend", "fa3"], old, table=gates, gpu="sm_120", environment=off)
    assert {f.evidence["feature"] for f in left} == {"custom-all-reduce", "attention-fa3"}


def test_a_variable_for_what_a_release_does_not_have(old):
    gates = table.recorded("0.5.9")
    on = {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}
    findings = launch.judge(["--model", "m"], old, table=gates, gpu="sm_120", environment=on)
    assert ("SGL017", "use SGLang 0.5.22 or newer") in {(f.rule, *f.fix[:1]) for f in findings}
