"""Secrets planted everywhere, and every output and file of every command searched for them."""

from __future__ import annotations

import base64
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from stack_builder.cli import app as cli
from tests.hardening import table
from tests.hardening.hostile import Attempt, attempt
from tests.hardening.plugin import Recorder
from tests.hardening.test_hostile_archives import BUILD, good
from tests.hardening.tiny import make_tiny
from tests.hardening.web import EVENT, FINE, Web
from tests.unit.patch.conftest import FILES, HEAD, TABLE_PATCH, record_of
from tests.unit.serve.conftest import FIXTURES
from tests.unit.sglang.conftest import FILES as SGLANG

USER, HOST = "verysecretuser", "verysecrethost"
HF, KEY = "hf_PlantedTokenPlantedToken", "planted-api-key-4711"
INDEX, DOCKER = "planted-index-password", "planted-registry-password"
NETRC, OTHER = "planted-netrc-password", "planted-environment-value"
AWS = "planted/aws+value=="


def basic(secret: str) -> str:
    """As HTTP and Docker's config.json write it."""
    return base64.b64encode(f"robot:{secret}".encode()).decode()


SECRETS = (HF, KEY, AWS, INDEX, DOCKER, NETRC, OTHER, *map(basic, (INDEX, DOCKER, NETRC)))
NAMES = (USER, HOST)  # the home folder ends in the first
OWN = ("stacks", "servers")  # folders of the tool's own notes, which say where things lie on this machine
LOG = f"""Traceback (most recent call last):
  File "/home/{USER}/venv/lib/python3.11/site-packages/sgl_kernel/__init__.py", line 9, in <module>
ImportError: /home/{USER}/venv/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib on {HOST} \
AWS_SECRET_ACCESS_KEY={AWS} DB_PASSWD={AWS} SECRET_KEY={AWS} SSH_PRIVATE={AWS} C:\\Users\\{USER}\\x Cookie: sessionid={AWS}
server_args=ServerArgs(api_key='{KEY}', hf_token={HF}) http://u:{INDEX}@index.example/
"""
STAND_IN = f'#!/bin/sh\nPYTHONPATH="{FIXTURES}" exec "{sys.executable}" "$@"\n'
METADATA = b"Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n"
REFUSED = (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"{}")
MEASURED = table.ROOT / "docs" / "bench" / "h200" / "pair.json"
IMAGE = f"registry.example/x@sha256:{'0' * 64}"


@pytest.fixture
def planted(
    server: Web, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Attempt]]:
    """Call ``stackb`` in ``home/USER/work``, where everything that could be told is a secret."""
    home = tmp_path / "home" / USER
    work = home / "work"
    work.mkdir(parents=True)
    registry = server.url.removeprefix("http://")
    docker = {"auths": {registry: {"auth": basic(DOCKER)}}}
    files = {
        home / ".docker" / "config.json": json.dumps(docker),
        home / ".netrc": f"machine 127.0.0.1 login robot password {NETRC}\n",
        work / "server.log": LOG,
        work / "key": KEY,
        work / "tables.toml": f'id = "tables"\n{HEAD}\n{TABLE_PATCH}',
        work / "policy.json": '{"1": [7], "19": [2]}',
        work / "venv" / "pyvenv.cfg": "home = /usr/bin\n",
        work / "venv" / "bin" / "python3": STAND_IN,
    }
    site = work / "venv" / "lib" / "python3.11" / "site-packages"
    sglang = {**{path: text.encode() for path, text in SGLANG.items()}, "sglang-0.5.9.dist-info/METADATA": METADATA}
    for name, installed in {"demo-1.0": FILES, "sglang-0.5.9": sglang}.items():
        record = f"{name}.dist-info/RECORD"
        whole = {**installed, record: record_of(installed, record)}
        files |= {site / path: data.decode() for path, data in whole.items()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (work / "venv" / "bin" / "python3").chmod(0o755)
    make_tiny(work, good())
    shutil.copytree(work / "tiny", work / "other")
    for name, value in {
        "HOME": str(home), "USER": USER, "LOGNAME": USER, "USERNAME": USER, "HOSTNAME": HOST,
        "HF_TOKEN": HF, "OPENAI_API_KEY": KEY, "SOME_SETTING": OTHER,
        "UV_DEFAULT_INDEX": f"http://robot:{INDEX}@{registry}/simple",
        "STACKB_CACHE_DIR": str(home / ".cache" / "stackb"), "STACKB_STATE_DIR": str(home / ".local" / "stackb"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    for name in ("XDG_CACHE_HOME", "VIRTUAL_ENV", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    server.answers |= {"/simple/demo/": REFUSED, "/v2/x/manifests/y": REFUSED, "/v2/x/blobs/uploads/": REFUSED}
    server.answers |= {"/v1/completions": (200, EVENT, FINE), "/v1/models": (200, {}, b'{"data": [{"id": "m"}]}')}

    def call(*arguments: str) -> Attempt:
        return attempt([word.format(server=server.url, registry=registry, port=port) for word in arguments], work)

    yield call
    call("serve", "--stop", "--port", "{port}")  # where the test ended before it did


LOCALLY = ["--in", "local", "--venv", "venv", "--port", "{port}"]
SERVE = ["serve", "tiny", "--spec", "none", "--model", "org/model", *LOCALLY]
EXPORT = ["tiny", "--model", "org/model", "--draft", "org/draft", "--policy", "policy.json", "--image", IMAGE]
COMMANDS: dict[str, tuple[list[str], int]] = {
    "fetch from an index with a password": (["fetch", "tiny", "--jobs", "1"], 3),
    "build": (BUILD, 0),
    "fetch": (["fetch", "tiny"], 0),
    "explain": (["explain", "server.log"], 1),
    "explain as JSON": (["explain", "server.log", "--format", "json"], 1),
    "explain as SARIF": (["explain", "server.log", "--format", "sarif"], 1),
    "lock from an index with a password": (["lock", "tiny"], 3),
    "lock --check as JSON": (["lock", "tiny", "--check", "--format", "json"], 0),
    "doctor of wheels and host as JSON": (["doctor", "wheels:wheels", "--format", "json"], 0),
    "doctor of a missing folder": (["doctor", f"venv:/home/{USER}/none"], 2),
    "sbom": (["sbom", "tiny"], 0),
    "patch list": (["patch", "list"], 0),
    "patch status": (["patch", "status", "venv:venv", "--patch", "tables.toml"], 1),
    "patch apply": (["patch", "apply", "venv:venv", "--patch", "tables.toml"], 0),
    "patch revert": (["patch", "revert", "venv:venv"], 0),
    "patch contract": (["patch", "contract", "Wrapper", "venv:venv"], 0),
    "patch export": (["patch", "export", "venv:venv", "--patch", "tables.toml"], 0),
    "probe": (["probe", "venv:venv", "--only", "torch_build", "--format", "json"], 1),
    "sglang options": (["sglang", "options", "--target", "venv:venv"], 0),
    "sglang gates": (["sglang", "gates", "--target", "venv:venv"], 0),
    "sglang contract": (["sglang", "contract", "LlamaForCausalLM", "--target", "venv:venv"], 0),
    "sglang check": (["sglang", "check", "--target", "venv:venv", "--", "--model", "x"], 0),
    "bench with a key": (
        ["bench", "{server}", "--api-key-file", "key", "--concurrency", "1", "--requests", "1", "--tokens", "4",
         "--output", "results.json"], 0),
    "policy": (["policy", str(MEASURED)], 0),
    "history": (["history"], 0),
    "history as JSON": (["history", "--format", "json"], 0),
    "diff": (["diff", "tiny", "other"], 0),
    "push with a password": (["push", "out/tiny", "{registry}/x:y"], 3),
    "pull with a password": (["pull", "{registry}/x:y", "pulled"], 3),
    "verify": (["verify", "oci:out/tiny", "--quick", "--format", "json"], 0),
    "export compose": (["export", "compose", *EXPORT], 0),
    "export kubernetes": (["export", "kubernetes", *EXPORT, "--nodes", "2"], 0),
    "serve --dry-run with a key": ([*SERVE, "--api-key-file", "key", "--dry-run"], 0),
    "serve --check": ([*SERVE, "--api-key-file", "key", "--check", "--format", "json"], 1),
    "serve with a key": ([*SERVE, "--api-key-file", "key", "--skip-preflight", "--detach", "--format", "json"], 0),
    "serve --status": (["serve", "--status"], 0),
    "serve --stop": (["serve", "--stop", "--port", "{port}"], 0),
    "cache info": (["cache", "info"], 0),
    "cache info as JSON": (["cache", "info", "--json"], 0),
    "cache verify": (["cache", "verify", "--format", "json"], 0),
    "cache prune": (["cache", "prune", "--all", "--dry-run"], 0),
    "rules": (["rules", "LOG001"], 0),
    "schema": (["schema", "report"], 0),
}  # fmt: skip


def subcommands() -> set[tuple[str, ...]]:
    """Every command that there is, by its words."""
    found: set[tuple[str, ...]] = set()
    for name in cli.COMMANDS:
        module = importlib.import_module(f"stack_builder.cli.{name}")
        group = typer.main.get_command(module.app) if hasattr(module, "app") else None
        found |= {(name, each) for each in group.commands} if group else {(name,)}  # type: ignore[attr-defined]
    return found


def test_every_command_is_tried() -> None:
    tried = {tuple(arguments[:length]) for arguments, _ in COMMANDS.values() for length in (1, 2)}
    assert subcommands() - tried == set()


def test_no_planted_secret_comes_out(
    planted: Callable[..., Attempt], server: Web, tmp_path: Path, hardened: Recorder
) -> None:
    mine = {path for path in tmp_path.rglob("*") if path.is_file()}
    for name, (arguments, code) in COMMANDS.items():
        done = planted(*arguments)
        assert done.code == code, (name, done)
        for hidden in SECRETS if "--dry-run" in arguments else (*SECRETS, *NAMES):  # a command line to run is exact
            assert hidden not in done.out + done.said, name
        hardened("secrets", f"stackb {name}", code=code)
    sent = {headers["authorization"] for _, headers in server.asked if "authorization" in headers}
    assert {f"Basic {basic(INDEX)}", f"Basic {basic(DOCKER)}", f"Bearer {KEY}"} <= sent  # they were there to be told
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in mine]
    assert {"index.json", "results.json", "history.jsonl", "stackb-receipt.json"} <= {path.name for path in written}
    for path in written:
        for hidden in SECRETS if path.parent.name in OWN else (*SECRETS, *NAMES):
            assert hidden.encode() not in path.read_bytes(), path


def test_what_is_asked_for_is_shown(planted: Callable[..., Attempt]) -> None:
    done = planted("--no-redact", "explain", "server.log")
    assert f"/home/{USER}" in "".join(done.out.split()), done
