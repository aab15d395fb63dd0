"""What was recorded on two H200s (tests/gpu/README.md), held to account: servers, probes, and the causes of crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stack_builder.diagnose.explain import explain

RECORD = Path(__file__).parents[1] / "gpu" / "record"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORD / "serve.json").read_text())
    return content


def rules(result: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in result["report"]["findings"]}


def test_both_arms_were_ready_answered_a_stream_and_stopped(record: dict[str, Any]) -> None:
    for arm in ("none", "eagle3"):
        assert record[arm]["exit"] == 0
        assert record[f"{arm}: chat"]["finished"]
        assert record[f"{arm}: chat"]["usage"]["completion_tokens"] == 64
        assert record[f"{arm}: stop"]["exit"] == 0
    assert record["status"]["report"].count("\trunning\tcu130-sglang-0.5.17\t") == 4


def test_the_constructed_pair_is_accepted_and_the_random_one_is_not(record: dict[str, Any]) -> None:
    assert record["none"]["report"]["facts"]["accept_length"] is None
    assert record["eagle3"]["report"]["facts"]["accept_length"] > 1.5
    assert record["random draft"]["report"]["facts"]["accept_length"] < 1.05
    assert record["random draft"]["exit"] == 1
    assert "RUN002" in rules(record["random draft"])
    # the number of pieces of the stream says it, too: speculation sends several tokens at once
    assert record["eagle3: chat"]["pieces"] < record["none: chat"]["pieces"] / 2


def test_one_server_over_two_gpus_accepts_what_one_gpu_does(record: dict[str, Any]) -> None:
    """The pair is constructed: what the draft gets right follows from seeds, however many GPUs compute it."""
    result, facts = record["two ranks"], record["two ranks"]["report"]["facts"]
    assert result["exit"] == 0
    assert result["report"]["skipped"] == []
    assert {"sglang::scheduler_TP0", "sglang::scheduler_TP1"} <= set(record["two ranks: processes"])
    assert abs(facts["accept_length"] - record["eagle3"]["report"]["facts"]["accept_length"]) < 0.05
    assert {row["state"] for row in facts["activity"]} == {"active"}
    assert record["two ranks: chat"]["usage"]["completion_tokens"] == 64
    assert record["two ranks: chat"]["pieces"] < record["none: chat"]["pieces"] / 2
    assert record["two ranks: stop"]["exit"] == 0


def test_a_rank_that_was_lost_ended_the_server_and_was_explained(record: dict[str, Any]) -> None:
    result = record["a rank lost"]
    assert (result["killed"], result["exit"]) == (1, 1)
    ended, cause = result["report"]["findings"][:2]
    assert (ended["rule"], ended["detail"]) == ("RUN006", "signal 9")
    assert cause["detail"].startswith("Another rank of this server ended without a word of its own")


def test_a_server_that_was_asked_to_stop_finished_its_answer(record: dict[str, Any]) -> None:
    assert record["none, asked to stop: chat"]["finished"]
    assert record["none, asked to stop: chat"]["usage"]["completion_tokens"] == 3900
    assert "killed:" not in record["none: stop"]["stderr"]


def test_a_flag_that_does_nothing_on_one_gpu_was_contradicted(record: dict[str, Any]) -> None:
    result = record["fusion flag"]
    assert result["exit"] == 1
    assert "RUN001" in rules(result)
    rows = {row["feature"]: row for row in result["report"]["facts"]["activity"]}
    assert [name for name, row in rows.items() if row["state"] != "active"] == ["flashinfer-allreduce-fusion"]
    assert rows["flashinfer-allreduce-fusion"]["state"] == "inactive"


def test_every_row_of_what_is_active_has_a_source(record: dict[str, Any]) -> None:
    facts = record["eagle3"]["report"]["facts"]
    sources = {row["feature"]: row["source"] for row in facts["activity"]}
    assert sources["speculation"] == "requests"
    assert sources["cuda-graph"] == "log"
    assert sources["speculative_num_steps"] == sources["attention_backend"] == "/server_info"
    # four books of one thing: what the series of requests counted, and three of the server's own
    lengths = facts["accept_length_by"]
    assert set(lengths) == {"requests", "/v1/loads", "/metrics", "/server_info"}
    assert max(lengths.values()) - min(lengths.values()) < 0.1
    assert facts["running_requests_by"] == {"/v1/loads": 1}


@pytest.mark.parametrize(
    ("name", "exit_code", "rule"),
    [
        ("missing hook", 1, "SGL042"),
        ("wrong vocabulary", 1, "SGL045"),
        ("unknown option", 1, "SGL001"),
        ("memory fraction too high", 1, "RUN007"),
        ("wrong vocabulary, insisted on", 1, "RUN007"),
        ("check: too many ranks", 1, "RUN014"),
    ],
)
def test_each_broken_launch_was_stopped_or_explained(
    record: dict[str, Any], name: str, exit_code: int, rule: str
) -> None:
    assert record[name]["exit"] == exit_code
    assert rule in rules(record[name])


def test_the_checks_alone_start_nothing_and_stop_at_no_warning(record: dict[str, Any]) -> None:
    """The environment is trimmed and no lock's, and preflight says so; the same findings let four servers start."""
    report = record["check"]["report"]
    assert report["facts"]["checked"] == ["lock", "environment", "patches", "launch line", "memory", "room"]
    assert rules(record["check"]) == {"RUN012", "ABI010"}
    assert {finding["severity"] for finding in report["findings"]} == {"warning"}
    assert report["skipped"] == []
    assert "ready_after_s" not in report["facts"]


def test_an_error_that_is_insisted_on_is_what_the_server_dies_of(record: dict[str, Any]) -> None:
    assert {"SGL045", "SGL047"} <= rules(record["wrong vocabulary"])
    assert "--despite SGL045 --despite SGL047" in record["wrong vocabulary"]["stderr"]
    assert record["wrong vocabulary, insisted on"]["report"]["findings"][0]["cause"] == "draft_target_mismatch"


def test_an_occupied_port_was_refused(record: dict[str, Any]) -> None:
    assert record["occupied port"]["exit"] == 3
    assert "already in use" in record["occupied port"]["stderr"]


@pytest.mark.parametrize("when", ["good servers", "two ranks", "broken servers"])
def test_nothing_was_left_when_a_stop_returned(record: dict[str, Any], when: str) -> None:
    left = record[f"left: {when}"]
    assert left["MiB at once"] == [0, 0]
    # a machine without an init process keeps the dead listed
    assert all("<defunct>" in row for row in left["processes"])


def test_every_probe_ran(record: dict[str, Any]) -> None:
    report = record["probe"]["report"]
    assert (report["verdict"], report["findings"], report["skipped"]) == ("pass", [], [])
    facts = report["facts"]
    assert [device["capability"] for device in facts["gpu"]["devices"]] == ["9.0", "9.0"]
    assert facts["nvrtc"]["cubin_bytes"]["sm_120a"] > 0
    assert {(pair["from"], pair["to"]) for pair in facts["peer_to_peer"]["pairs"]} == {(0, 1), (1, 0)}
    assert all(pair["intact"] and pair["peer_access"] for pair in facts["peer_to_peer"]["pairs"])
    assert (facts["allreduce"]["world_size"], facts["allreduce"]["bytes"]) == (2, 43008)


@pytest.mark.parametrize(
    ("port", "cause"),
    [(31006, "memory_exhausted"), (31015, "memory_exhausted"), (31016, "draft_target_mismatch")],
)
def test_the_recorded_crashes_are_explained(port: int, cause: str) -> None:
    with (RECORD / f"{port}.log").open("rb") as log:
        report = explain(log, f"{port}.log")
    assert report.findings[0].cause == cause


@pytest.mark.parametrize("port", [31001, 31002, 31004, 31005])
def test_a_clean_run_and_stop_is_not_taken_for_a_crash(port: int) -> None:
    with (RECORD / f"{port}.log").open("rb") as log:
        assert explain(log, f"{port}.log").counted == ()


def test_a_draft_that_is_never_right_shows_in_the_log() -> None:
    with (RECORD / "31003.log").open("rb") as log:
        first = explain(log, "31003.log").findings[0]
    assert "No draft token was accepted" in first.detail
