"""``stackb bench``, ``policy`` and ``history`` end to end, against servers whose crossover is known."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from stack_builder.bench.history import read_log
from stack_builder.bench.results import read
from stack_builder.cli.app import run
from stack_builder.errors import MachineError
from stack_builder.report.model import Json
from stack_builder.serve.processes import listener
from tests.unit.bench.simulation import Simulation

SERVER = Path(__file__).parents[2] / "fixtures" / "llm" / "server.py"
EAGLE = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
StartServer = Callable[..., str]


@pytest.fixture
def server() -> Iterator[StartServer]:
    children = []

    def start(*words: str) -> str:
        child = subprocess.Popen([sys.executable, str(SERVER), *words], stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        return f"http://127.0.0.1:{int(child.stdout.readline())}"

    yield start
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STACKB_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def simulation(llm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    made = Simulation(llm)
    monkeypatch.setattr("asyncio.run", made.run)
    yield made
    made.close()


def test_from_two_servers_to_a_policy_that_keeps_its_promise(
    simulation: Simulation, llm: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Curves that meet at 10 clients: 1.8 (1 + x / 40) = 1 + x / 8."""
    base = simulation.server(rate=60, knee=40, limit=64)
    fast = {"rate": 108, "knee": 8, "per_event": 3, "limit": 64}
    eagle = simulation.server(**fast, info=EAGLE)
    out, config = tmp_path / "r.json", tmp_path / "policy.json"
    arms = ["--pair", f"base={base}", "--pair", f"eagle={eagle}"]
    words = ["--api", "generate", "--tokens", "12", "--concurrency", "1,4,24", "--requests", "1"]
    words += ["--repeats", "3", "--max-repeats", "3", "--output", str(out)]
    assert run(["bench", *arms, *words]) == 0
    assert "pays" in capsys.readouterr().out
    results = read(out)
    assert [(run_.arm, run_.round) for run_ in results.runs[:4]] == [
        ("base", 0),
        ("eagle", 0),
        ("eagle", 1),
        ("base", 1),
    ]
    assert all(run_.figures.tokens == run_.server_tokens == 12 * run_.level for run_ in results.runs)
    assert {run_.accept_length for run_ in results.runs if run_.arm == "eagle"} == {3.0}
    for run_ in results.runs:
        rate, knee = {"base": (60, 40), "eagle": (108, 8)}[run_.arm]
        assert run_.figures.throughput == pytest.approx(rate * run_.level / (1 + run_.level / knee))

    assert run(["policy", str(out), "--sglang-version", "0.5.23", "--output", str(config)]) == 0
    rows = json.loads(config.read_text())
    assert [row["candidate_steps"] for row in rows.values()] == [[3], [0]]
    assert 10 <= int(list(rows)[1]) <= 11
    assert f"--speculative-adaptive-config {config}" in capsys.readouterr().err

    facts = {**EAGLE, "speculative_adaptive": True}
    adaptive = simulation.server(**fast, adaptive=llm.table(str(config)), plain=(60, 40), info=facts)
    words = ["--verify", "--repeats", "2", "--budget", "1", *arms, "--pair", f"policy={adaptive}"]
    words += ["--results-output", str(out)]
    assert run(["policy", str(out), "--sglang-version", "0.5.23", "--output", str(config), *words]) == 0
    shown = capsys.readouterr().out
    assert "the policy against the better static arm" in shown
    assert "worse" not in shown
    again = read(out)
    assert [arm.name for arm in again.arms] == ["base", "eagle", "policy"]
    assert len({run_.level for run_ in again.runs}) == 5  # one more on each side of the threshold
    lengths = {run_.level: run_.accept_length for run_ in again.runs if run_.arm == "policy"}
    assert lengths[1] == 3.0
    assert lengths[24] != 3.0  # it did switch

    assert run(["history"]) == 0
    assert re.search(rf"{results.id} +stackb +base / eagle  ", capsys.readouterr().out)


def test_arms_that_stackb_serve_starts_and_stops(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "venv" / "bin" / "python3"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{SERVER.parent}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    out = tmp_path / "r.json"
    how = f"cu130-sglang-0.5.23 --in local --venv {python.parents[1]} --skip-preflight --model some/target"
    words = ["--arm", f"base={how} --spec none", "--arm", f"eagle={how} --spec eagle3 --draft some/draft"]
    words += [
        "--api",
        "generate",
        "--tokens",
        "12",
        "--concurrency",
        "2",
        "--requests",
        "1",
        "--repeats",
        "1",
        "--max-repeats",
        "1",
    ]
    assert run(["bench", *words, "--output", str(out)]) == 0, capfd.readouterr().err
    results = read(out)
    assert [(run_.arm, run_.level) for run_ in results.runs] == [("base", 2), ("eagle", 2)]
    assert [arm.facts.speculates for arm in results.arms] == [False, True]
    assert results.arms[1].receipt["accept_length"] == pytest.approx(3, abs=0.1)
    assert results.arms[0].facts.limit == results.arms[1].facts.limit
    assert [listener(int(arm.url.rpartition(":")[2])) for arm in results.arms] == [None, None]


def test_an_arm_that_does_not_start_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    how = f"cu130-sglang-0.5.23 --in local --venv {tmp_path} --model some/target"
    assert run(["bench", "--arm", f"a={how}", "--concurrency", "1"]) == 3
    assert "arm a: stackb serve could not start it" in capfd.readouterr().err


@dataclass
class Flaky:
    """An arm that starts once, and the second time does what it is told."""

    name: str
    url: str
    again: Callable[[], None]
    log: list[str]

    def start(self) -> tuple[str, dict[str, Json]]:
        if f"{self.name} started" in self.log:
            self.again()
        self.log.append(f"{self.name} started")
        return self.url, {}

    def stop(self) -> None:
        self.log.append(f"{self.name} stopped")


def fail() -> None:
    raise MachineError("no GPU is free", where="arm b")


def interrupted() -> None:
    """Ctrl-C reaches the whole process group, so a server that is being started ends as well."""
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    fail()


@pytest.mark.parametrize(("again", "code"), [(fail, 3), (interrupted, 130)])
def test_what_was_measured_survives_an_arm_that_does_not_start_again(
    again: Callable[[], None],
    code: int,
    server: StartServer,
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log: list[str] = []
    url = server("--rate", "5000")
    arms = [Flaky("a", url, fail, log), Flaky("b", url, again, log)]
    monkeypatch.setattr("stack_builder.cli.bench.parse_arms", lambda *_: arms)
    call = ["bench", "--arm", "served", "--concurrency", "1", "--tokens", "4", "--requests", "1", "--repeats", "2"]
    assert run(call) == code
    assert log == ["a started", "a stopped", "b started", "b stopped"]
    (kept,), problems = read_log(state / "history.jsonl")
    assert (kept.partial, problems) == (True, [])
    assert [(run_.arm, run_.round, run_.valid) for run_ in kept.runs] == [("a", 0, True), ("b", 0, True)]
    told = capsys.readouterr().err
    assert ("arm b: no GPU is free" in told) == (code == 3)
    assert (f"stackb history {kept.id}" in told) == (code == 3)


def test_arms_that_cannot_be_up_together_are_repeated_as_well(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal at one client, where the interval holds 1, and far apart at eight: only one client is measured again."""
    log: list[str] = []
    out = tmp_path / "r.json"
    urls = [simulation.server(rate=100), simulation.server(rate=100 * (1 + 1 / 7), knee=7, noise=0.001)]
    arms = [Flaky(name, url, lambda: None, log) for name, url in zip("ab", urls, strict=True)]
    monkeypatch.setattr("stack_builder.cli.bench.parse_arms", lambda *_: arms)
    words = ["--concurrency", "1,8", "--tokens", "8", "--requests", "1", "--repeats", "2", "--max-repeats", "4"]
    assert run(["bench", "--arm", "served", *words, "--output", str(out)]) == 0
    assert [entry for entry in log if "started" in entry] == [f"{name} started" for name in "abbaabba"]
    levels = [[run_.level for run_ in read(out).runs if run_.round == number] for number in range(4)]
    assert levels == [[1, 8, 1, 8], [1, 8, 1, 8], [1, 1], [1, 1]]


def test_arms_that_were_started_are_stopped_when_the_next_is_not(
    server: StartServer, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ["b started"]
    url = server("--rate", "5000")
    arms = [Flaky("a", url, fail, log), Flaky("b", url, fail, log)]
    monkeypatch.setattr("stack_builder.cli.bench.parse_arms", lambda *_: arms)
    assert run(["bench", "--arm", "served", "--together", "--concurrency", "1"]) == 3
    assert log == ["b started", "a started", "a stopped"]
    assert not (state / "history.jsonl").exists()  # nothing was measured


def test_an_arm_that_started_and_does_not_answer_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr("stack_builder.cli.bench.parse_arms", lambda *_: [Flaky("a", "http://127.0.0.1:1", fail, log)])
    assert run(["bench", "--arm", "served", "--concurrency", "1"]) == 3
    assert log == ["a started", "a stopped"]


@pytest.mark.parametrize("arms", [1, 2])
def test_ctrl_c_keeps_what_was_measured(arms: int, server: StartServer, tmp_path: Path, state: Path) -> None:
    """Of one server the figures of its complete requests, of a pair its complete runs."""
    urls = [server("--rate", "400") for _ in range(arms)]
    out = tmp_path / "r.json"
    each, level = ("400", "2") if arms == 1 else ("3", "1")
    words = ["bench", *urls, "--concurrency", level, "--requests", each, "--repeats", "200", "--tokens", "40"]
    child = subprocess.Popen(
        [sys.executable, "-m", "stack_builder", *words, "--output", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "STACKB_STATE_DIR": str(state)},
    )
    assert child.stderr is not None
    assert any("benching" in line for line in child.stderr)
    until = time.monotonic() + 30
    while not (out.exists() and len(read(out).runs) > 2 if arms == 2 else _busy(urls[0])):
        assert time.monotonic() < until, "nothing was measured"
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    shown, told = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in told
    assert "Cut short" in shown
    results = read(out)
    assert results.partial
    assert results.runs[0].figures.completed > 0
    assert results.runs[0].valid
    assert {reason.rule for run_ in results.runs for reason in run_.rejected} <= {"BENCH012"}
    assert (state / "history.jsonl").read_text().count("\n") == 1


def _busy(url: str) -> bool:
    """Whether a server has sent the tokens of several requests."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        return any(int(line.split()[1]) > 200 for line in answer.read().decode().splitlines())


def test_failed_requests_reject_the_run(server: StartServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = server("--rate", "5000")
    assert run(["bench", f"{url}/nowhere", "--concurrency", "1", "--tokens", "4"]) == 1
    shown = capsys.readouterr().out
    assert "rejected by BENCH001" in shown
    assert "404" in shown


def test_goodput_is_told_for_each_level(simulation: Simulation, capsys: pytest.CaptureFixture[str]) -> None:
    """A request takes 100 ms alone and nearly 150 beside another."""
    url = simulation.server(rate=200, knee=1)
    assert run(["bench", url, "--concurrency", "1,2", "--tokens", "10", "--slo", "e2e=120,ttft=1000"]) == 0
    shown = capsys.readouterr().out
    assert "goodput" in shown
    assert re.search(r"^  1 .* 100%$", shown, re.MULTILINE)
    assert re.search(r"^  2 .* 0%$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--pair", "http://127.0.0.1:1"],
        ["http://127.0.0.1:1", "--concurrency", "0"],
        ["http://127.0.0.1:1", "--concurrency", "1.5"],
        ["http://127.0.0.1:1", "--slo", "speed=3"],
        ["http://127.0.0.1:1", "--prompts", "/no/such/file"],
        ["--pair", "a=http://127.0.0.1:1", "--pair", "a=http://127.0.0.1:2"],
        ["--arm", "a=--model 'x"],
        ["127.0.0.1:30000"],
    ],
)
def test_usage_errors_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_prompt_that_no_request_can_hold_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "fine"}\n{"prompt": "half a pair: \\ud83d"}\n')
    assert run(["bench", "http://127.0.0.1:1", "--concurrency", "2", "--prompts", str(prompts)]) == 2
    assert f"{prompts.name}:2: is not JSON: half of a surrogate pair" in capsys.readouterr().err


def test_https_is_trusted_by_its_authority_alone(
    server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*words.split(), *files], cwd=tmp_path, check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text((tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text())
    url = server("--rate", "5000", "--certificate", str(both)).replace("http:", "https:")
    call = ["bench", url, "--concurrency", "2", "--tokens", "4", "--output", str(tmp_path / "r.json")]
    assert run(call) == 3
    told = capsys.readouterr().err
    assert "self-signed certificate" in told
    assert "SSL_CERT_FILE" in told
    assert told.count("\n") == 1
    assert run([*call[:1], url.replace("https:", "http:"), *call[2:]]) == 1  # every request fails, and is counted
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    for connections in ("kept", "fresh"):
        assert run([*call, "--connections", connections]) == 0
        results = read(tmp_path / "r.json")
        assert results.settings.connections == connections
        assert results.runs[0].figures.tokens == results.runs[0].server_tokens == 16


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "http://127.0.0.1:1", "--concurrency", "1"]) == 3
    assert "cannot be reached" in capsys.readouterr().err
