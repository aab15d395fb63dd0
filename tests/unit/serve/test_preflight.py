"""What stops a launch before it starts: lock, patches, image, room, ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from stack_builder.diagnose.host import HostFacts
from stack_builder.diagnose.host.facts import Device
from stack_builder.diagnose.locked import judge_image, judge_installed
from stack_builder.diagnose.room import Need, Place, judge_room, look, needs
from stack_builder.patchset import model
from stack_builder.report import Finding, Report, Severity, Target
from stack_builder.serve.place import Environment, Image
from stack_builder.serve.plan import Request, make_plan
from stack_builder.serve.preflight import Launch, launch_line, memory, patches, room, stops
from stack_builder.stack import lock as locks
from stack_builder.stack import spec as stacks
from stack_builder.stack.spec import ServeProfile
from tests.unit.patch.conftest import record_of

REPLICA, DEFAULT = "cu130-sglang-0.5.9", "cu130-sglang-0.5.23"
GIB = 1 << 30


def stackb(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stack_builder", "serve", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DOCKER_HOST": "unix:///nowhere.sock", **env},
    )


def launch(place: Environment | Image, *extra: str, stack: str = DEFAULT, gpus: int = 0) -> Launch:
    folder = stacks.find(stack)
    spec = stacks.load(folder)
    request = Request(stack=spec.stack.name, spec="none", model="m", extra=extra)
    plan = make_plan(request, ServeProfile(args={}), python="python3")
    host = HostFacts("x86_64", "6.1", devices=(Device("H200", "9.0", 141 * GIB),) * gpus)
    return Launch(plan, spec, folder, place, "sm_120", host)


def test_the_replicas_lock_stops_a_launch_and_says_how_to_insist(tmp_path: Path) -> None:
    arguments = (REPLICA, "--spec", "none", "--model", "m", "--format", "json")
    done = stackb(*arguments, STACKB_CACHE_DIR=str(tmp_path))
    assert done.returncode == 1, done.stderr
    errors = {f["rule"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "error"}
    assert errors >= {"LOCK002", "LOCK005", "LOCK008"}  # the three that the founding report's stack is known for
    assert done.stderr.splitlines()[-1].startswith("not started; ")
    insist = done.stderr.splitlines()[-1].split(" with ")[1].split()
    # what it says to type leads past the checks, to the missing engine
    again = stackb(*arguments, *insist, STACKB_CACHE_DIR=str(tmp_path))
    assert again.returncode == 3
    assert "no Docker engine answers" in again.stderr


def test_check_reports_and_starts_nothing(tmp_path: Path) -> None:
    done = stackb(
        DEFAULT, "--spec", "none", "--model", "m", "--check", "--format", "json", STACKB_CACHE_DIR=str(tmp_path)
    )
    report = json.loads(done.stdout)
    assert [f["rule"] for f in report["findings"]] == []
    assert done.returncode == 3, done.stderr  # nothing was found, but without its image nothing can start
    assert {entry["rule"] for entry in report["skipped"]} >= {"RUN012", "PATCH006", "SGL001", "RUN010"}
    assert not any(entry["rule"] in ("LOCK017", "LOCK018", "LOCK019") for entry in report["skipped"])


class EngineWithoutImages(BaseHTTPRequestHandler):
    """Docker's engine, as far as it is asked for an image that it does not have; remembers the questions."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Answer as engine 20.10 does."""
        known = self.path == "/version"
        answer = {"ApiVersion": "1.41"} if known else {"message": "No such image"}
        body = json.dumps(answer).encode()
        self.asked.append(self.path)
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_check_asks_the_engine_once_and_its_report_carries_that_no_start_can_work(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), EngineWithoutImages) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        env = {"STACKB_CACHE_DIR": str(tmp_path), "DOCKER_HOST": f"tcp://127.0.0.1:{engine.server_port}"}
        done = stackb(DEFAULT, "--spec", "none", "--model", "m", "--check", "--format", "json", **env)
        engine.shutdown()
    assert done.returncode == 3, done.stderr
    assert f"no image stackb/{DEFAULT}" in json.loads(done.stdout)["facts"]["cannot_start"]
    assert [path for path in EngineWithoutImages.asked if "/images/" in path] == [
        f"/v1.41/images/stackb/{DEFAULT}/json"
    ]


def test_a_mistyped_rule_is_no_way_on() -> None:
    done = stackb(DEFAULT, "--spec", "none", "--model", "m", "--despite", "LOCK0")
    assert done.returncode == 2
    assert "no rule 'LOCK0'" in done.stderr


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment with the part of SGLang 0.5.9 that one patch of the replica changes."""
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    record = "sglang-0.5.9.dist-info/RECORD"
    files = dict.fromkeys(model.available()["symm-mem-sm12"].spec.files, b"anything\n")
    for name, data in {**files, record: record_of(files, record)}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    return Environment(tmp_path)


def test_patches_that_do_not_stand_stop_a_launch(environment: Environment) -> None:
    said = patches.check(launch(environment, stack=REPLICA))
    assert said.facts["patches"] == {
        "symm-mem-sm12": "drifted",  # the files are not SGLang's
        "kimi-k25-eagle3": "conflict",  # and the others are not there
        "eagle3-graph-layers": "conflict",
    }
    assert {finding.rule for finding in said.findings} == {"PATCH001", "PATCH002"}
    assert all(finding.severity is Severity.ERROR for finding in said.findings)


def test_an_image_says_what_it_was_built_from() -> None:
    folder = stacks.find(REPLICA)
    spec, lock = stacks.load(folder), locks.load(folder)
    series = model.series(spec.patches.series, folder)
    labels = {
        "dev.stackb.lock": lock.sha256,
        "dev.stackb.gpu": "sm_120",
        "dev.stackb.patches": " ".join(f"{patch.id}={patch.sha256}" for patch in series),
    }

    def judged(**changes: str) -> list[tuple[str, Severity]]:
        given = {**labels, **{f"dev.stackb.{name}": value for name, value in changes.items()}}
        findings, skipped = judge_image(lock, spec, series, given, image="i", gpu="sm_120", stack="g/s")
        assert not skipped
        return [(finding.rule, finding.severity) for finding in findings]

    assert judged() == []
    assert judged(lock="0" * 64) == [("RUN012", Severity.WARNING)]
    assert judged(patches=labels["dev.stackb.patches"].partition(" ")[2]) == [("PATCH006", Severity.ERROR)]
    findings, skipped = judge_image(lock, spec, series, {}, image="foreign", gpu="sm_120", stack="g/s")
    assert (findings, {entry.rule for entry in skipped}) == ((), {"RUN012", "PATCH006"})


def test_an_environment_is_held_against_the_lock() -> None:
    lock = locks.load(stacks.find(DEFAULT))
    installed = {artifact.name: artifact.version for artifact in lock.artifacts}

    def judged(**changes: str) -> list[str]:
        found = judge_installed(
            lock, {**installed, **changes}, target="venv:v", requirements=Path("r"), leave_out="sglang"
        )
        return [finding.detail for finding in found]

    assert judged(black="1") == []
    (detail,) = judged(torch="2.9.1", sglang="0.5.9")  # another rule speaks of sglang
    assert detail.startswith("1 of ")
    assert "torch 2.9.1, locked 2.14.1" in detail


@pytest.mark.parametrize(
    ("wanted", "version", "rules"),
    [
        ("==0.5.23", "0.5.23", []),
        (">=0.5.17,<0.6", "0.5.23", []),
        ("==0.5.23", "0.5.23rc1", ["RUN011"]),
        ("==0.5.23", "0.5.17", ["RUN011"]),
        ("==0.5.23", "main-2026", ["RUN011"]),
    ],
)
def test_another_release_than_the_stacks_is_named(wanted: str, version: str, rules: list[str]) -> None:
    asked = launch(Environment(Path()))
    asked = replace(asked, spec=asked.spec.model_copy(update={"requires": {"sglang": wanted}}))
    assert [finding.rule for finding in launch_line._release(SimpleNamespace(version=version), asked)] == rules


def test_places_on_one_disk_share_its_room(tmp_path: Path) -> None:
    need = Need(what="w", bytes=100, source="s", relieve="r")
    one = Place(tmp_path / "a", need, device=1, free=199)
    assert judge_room([one]) == ()
    (finding,) = judge_room([one, replace(one, folder=tmp_path / "b")])
    assert (finding.rule, finding.evidence["needed"]) == ("RUN013", 200)
    assert judge_room([one, replace(one, folder=tmp_path / "b", present=60)]) == ()
    assert judge_room([one, replace(one, device=2)]) == ()


def test_room_is_what_the_system_says_of_the_first_folder_there(tmp_path: Path) -> None:
    seen = look(tmp_path / "not" / "yet", needs()["jit"])
    assert abs(seen.free - shutil.disk_usage(tmp_path).free) < 64 << 20  # others write meanwhile
    (tmp_path / "there").write_bytes(b"x" * 5000)
    assert look(tmp_path, needs()["jit"]).present == 5000


def test_shared_memory_counts_where_ranks_share_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(room, "look", lambda folder, need: looked.append(folder) or look(tmp_path, need))
    room.check(launch(Environment(tmp_path)))
    assert room.SHARED not in looked
    room.check(launch(Image("i"), "--tp-size", "8"))
    assert room.SHARED not in looked  # the launch gives the container its own
    room.check(launch(Environment(tmp_path), "--tp", "8"))
    assert room.SHARED in looked


@pytest.mark.parametrize(
    ("place", "extra", "gpus", "rules"),
    [
        (Environment(Path()), ("--tp-size", "8"), 2, ["RUN014"]),
        (Environment(Path()), ("--tp-size=2",), 2, []),
        (Environment(Path()), ("--tp-size", "8", "--nnodes", "4"), 2, []),
        (Image("i", gpus="0"), ("--tp", "2"), 2, ["RUN014"]),
        (Image("i", gpus="none"), ("--tp", "2"), 2, []),
    ],
)
def test_each_rank_needs_a_gpu(place: Environment | Image, extra: tuple[str, ...], gpus: int, rules: list[str]) -> None:
    assert [finding.rule for finding in memory.check(launch(place, *extra, gpus=gpus)).findings] == rules


def test_only_errors_stop_and_insisting_is_by_rule() -> None:
    findings = tuple(
        Finding(rule, severity, "t") for rule, severity in (("A1", Severity.ERROR), ("B1", Severity.WARNING))
    )
    report = Report(Target("launch", "s"), findings)
    assert [finding.rule for finding in stops(report)] == ["A1"]
    assert stops(report, ["A1"]) == ()
