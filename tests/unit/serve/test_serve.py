"""``stackb serve`` against a real child process: ready, proven, attached, stopped, explained."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from stack_builder.serve.processes import listener

from .conftest import Serve

EAGLE3 = ("--spec", "eagle3", "--model", "some/target", "--draft", "some/draft")
BASELINE = ("--spec", "none", "--model", "some/target")


def wait_for(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def attached(child: subprocess.Popen[str]) -> None:
    """Wait until it shows the server's log, which it does only once the server is ready and it watches over it."""
    assert child.stderr is not None
    assert any("fired up and ready" in line for line in child.stderr), "it ended before"


def processes_of(text: str) -> list[str]:
    """Command lines of this machine that contain ``text``: ``ps`` is the oracle."""
    rows = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [row for row in rows if text in row and "stack_builder serve" not in row]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_attached_server_is_stopped_with_all_its_children(serve: Serve, port: int, number: signal.Signals) -> None:
    child = serve(*EAGLE3, "--format", "json")
    attached(child)
    assert listener(port) is not None
    assert processes_of(f"--port {port}")
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert listener(port) is None
    assert processes_of(f"--port {port}") == []
    report = json.loads(output)
    assert report["facts"]["accept_length"] == 2.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_nothing(serve: Serve, port: int, number: signal.Signals) -> None:
    child = serve(*BASELINE, mode="silent")
    wait_for(lambda: processes_of(f"--port {port}"))
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert errors.splitlines()[-1] == "stackb: interrupted"
    assert processes_of(f"--port {port}") == []


def test_detached_server_is_listed_and_stopped(serve: Serve, port: int) -> None:
    child = serve(*BASELINE, "--detach", "--format", "json")
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert json.loads(output)["facts"]["accept_length"] is None
    listed, _ = serve("--status").communicate(timeout=30)
    assert listed.split("\t")[:3] == [str(port), "running", "standin"]
    stopping = serve("--stop")
    stopping.communicate(timeout=60)
    assert stopping.returncode == 0
    assert listener(port) is None
    assert processes_of(f"--port {port}") == []


def test_a_draft_that_is_never_right_is_warned_about(serve: Serve) -> None:
    child = serve(*EAGLE3, "--detach", "--format", "json", STANDIN_ACCEPT="1.0")
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 1, errors
    assert "RUN002" in [finding["rule"] for finding in json.loads(output)["findings"]]
    serve("--stop").communicate(timeout=60)


def test_a_flag_that_is_accepted_and_does_nothing_is_contradicted(serve: Serve) -> None:
    fusion = "--enable-flashinfer-allreduce-fusion"
    child = serve(*EAGLE3, "--detach", "--format", "json", "--", fusion)
    output, _ = child.communicate(timeout=60)
    findings = {finding["rule"]: finding for finding in json.loads(output)["findings"]}
    assert findings["RUN001"]["object"] == fusion
    serve("--stop").communicate(timeout=60)


def test_every_row_of_the_activity_report_names_its_source(serve: Serve) -> None:
    arguments = ("--", "--enable-metrics", "--attention-backend", "fa3")
    output, errors = serve(*EAGLE3, "--detach", "--format", "json", *arguments).communicate(timeout=120)
    serve("--stop").communicate(timeout=60)
    report = json.loads(output)
    facts = report["facts"]
    rows = {row["feature"]: (row["state"], row["source"]) for row in facts["activity"]}
    assert rows == {
        "speculation": ("active", "requests"),
        "cuda-graph": ("active", "/metrics"),
        "attention_backend": ("inactive", "/server_info"),  # the stand-in resolves it to triton
    }, errors
    assert facts["accept_length_by"] == {"requests": 2.0, "/v1/loads": 2.0, "/metrics": 1.9, "/server_info": 2.0}
    assert facts["running_requests_by"] == {"/v1/loads": 1}
    assert facts["tokens_per_second_by"] == {"/v1/loads": 282.1, "/metrics": 282.1}
    assert report["skipped"] == []
    assert "triton" in next(f["detail"] for f in report["findings"] if f["object"] == "--attention-backend fa3")


def test_sources_that_a_version_lacks_are_skipped_with_their_reason(serve: Serve) -> None:
    output, errors = serve(*BASELINE, "--detach", mode="old").communicate(timeout=120)
    serve("--stop").communicate(timeout=60)
    assert "/v1/loads: /v1/loads answered 404" in output, errors
    assert "/metrics: not served without --enable-metrics" in output
    assert "unproved" in output  # the table of rows: whether CUDA graphs are used is not known from silence


def test_graphs_that_are_not_used_are_named(serve: Serve) -> None:
    child = serve(*BASELINE, "--detach", "--format", "json", "--", "--enable-metrics", mode="no graphs")
    output, errors = child.communicate(timeout=120)
    serve("--stop").communicate(timeout=60)
    assert child.returncode == 1, errors
    assert [finding["rule"] for finding in json.loads(output)["findings"]] == ["RUN001"]


def test_an_effective_limit_below_the_one_asked_for_is_named(serve: Serve) -> None:
    output, _ = serve(*EAGLE3, "--detach", "--format", "json").communicate(timeout=60)
    findings = {finding["rule"]: finding for finding in json.loads(output)["findings"]}
    assert findings["RUN005"]["evidence"] == {"effective": 48}
    assert "64" in findings["RUN005"]["detail"]
    serve("--stop").communicate(timeout=60)


def test_a_crash_at_the_start_is_explained_and_leaves_nothing(serve: Serve, port: int) -> None:
    child = serve(*EAGLE3, "--format", "json", mode="dies")
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 1, errors
    findings = json.loads(output)["findings"]
    assert findings[0]["rule"] == "RUN007"
    assert findings[0]["cause"] == "library_missing"
    assert processes_of(f"--port {port}") == []


def test_a_crash_after_readiness_is_explained(serve: Serve, port: int) -> None:
    child = serve(*BASELINE, "--format", "json", mode="dies later")
    attached(child)
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/die", timeout=30):
        pass
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 1
    decoder = json.JSONDecoder()
    _, end = decoder.raw_decode(output)
    last = json.loads(output[end:])
    assert last["findings"][0]["rule"] == "RUN006"
    assert last["findings"][0]["cause"] == "memory_exhausted"


def test_a_server_that_says_nothing_is_given_up(serve: Serve, port: int) -> None:
    child = serve(*BASELINE, "--patience", "2", mode="silent")
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "RUN007" in output
    assert processes_of(f"--port {port}") == []


def test_a_server_that_ignores_the_request_to_stop_is_killed(serve: Serve, port: int) -> None:
    child = serve(*BASELINE, mode="stubborn", STACKB_STOP_PATIENCE="1")
    attached(child)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert processes_of(f"--port {port}") == []


def test_a_flood_of_output_neither_blocks_nor_grows(serve: Serve, port: int) -> None:
    child = serve(*BASELINE, "--detach", "--format", "json", mode="flood")
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert json.loads(output)["findings"][0]["severity"] == "note"  # nothing tells of CUDA graphs in a flood
    serve("--stop").communicate(timeout=60)


def test_an_occupied_port_is_refused_before_anything_starts(serve: Serve, port: int) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        child = serve(*BASELINE)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 3
    assert f"port {port}" in errors
    assert processes_of(f"sglang.launch_server --model-path m --host 127.0.0.1 --port {port}") == []


def test_another_servers_answer_is_not_taken_for_ready(serve: Serve, port: int, tmp_path: Path) -> None:
    """The port is taken after the check: /health answers 200, but from the other process."""
    (tmp_path / "health").write_text("")
    child = serve(*BASELINE, mode="elsewhere")
    wait_for(lambda: processes_of(f"--port {port}"))
    other = subprocess.Popen(
        ["python3", "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        output, _ = child.communicate(timeout=60)
    finally:
        other.kill()
        other.wait()
    assert child.returncode == 1
    assert "another process answers" in output
