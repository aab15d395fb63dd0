"""What ``--model`` and ``--draft`` name: a folder of this machine, or a name of a hub."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from stack_builder.cli.app import run
from tests.unit.serve.test_preflight import stackb

DEFAULT = "cu130-sglang-0.5.23"
# the catalogue's rules of a model alone, and of a model with its draft
OF_MODEL = {"SGL040", "SGL041", "SGL042", "SGL048", "SGL054"}
OF_PAIR = {*(f"SGL0{number}" for number in (43, 44, 45, 46, 47, 49, 50, 51, 52, 53, 55, 56))}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STACKB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize("way", [["--check"], ["--skip-preflight"], ["--dry-run"]])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/nope", "no such folder"),
        ("./nope", "no such folder"),
        ("../nope", "no such folder"),
        ("~/nope", "no such folder"),
        ("model/config.json", "not a folder"),
        ("empty", "no config.json"),
    ],
)
def test_a_path_that_holds_no_model_is_a_usage_error(
    name: str, why: str, way: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--model", name, "--spec", "none"], ["--model", "model", "--draft", name]):
        assert run(["serve", DEFAULT, *words, *way]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert why in said


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--gpus", "0,1x"), "--gpus"),
        (("--gpus", ""), "--gpus"),
        (("--gpus", "0,"), "--gpus"),
        (("--gpu", ""), "--gpu"),
    ],
)
def test_what_names_no_gpu_is_a_usage_error(
    words: tuple[str, ...], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", DEFAULT, "--spec", "none", "--model", "org/model", "--check", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"stackb: {where}: ")
    assert said.count("\n") == 1


def test_the_way_to_give_a_key_survives_redaction(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", DEFAULT, "--spec", "none", "--model", "m", "--dry-run", "--", "--api-key", "hunter2"]) == 2
    said = capsys.readouterr().err
    assert "--api-key-file" in said
    assert "hunter2" not in said


def test_a_command_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = " ".join(stackb(DEFAULT, "--spec", "none", "--model", "m", "--check").stdout.split())
    assert said.count("Start Docker.") == 2  # of the rule skipped, and of the fact


@pytest.mark.parametrize("gpus", ["all", "none", "0", "0,1", "GPU-8c2f-11,MIG-3/4"])
def test_gpus_as_docker_takes_them(gpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", DEFAULT, "--spec", "none", "--model", "org/model", "--dry-run", "--gpus", gpus]) == 0
    capsys.readouterr()


def test_a_port_that_somebody_listens_on_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = str(other.getsockname()[1])
        done = stackb(DEFAULT, "--spec", "none", "--model", "m", "--port", number, "--check", "--format", "json")
    assert done.returncode == 1
    (finding,) = [f for f in json.loads(done.stdout)["findings"] if f["rule"] == "RUN015"]
    assert f"port {number} belongs to process {os.getpid()}" in finding["detail"]


@pytest.mark.parametrize("name", ["model", "./model", "~/model"])
def test_a_folder_is_handed_on_by_its_absolute_path(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--no-redact", "serve", DEFAULT, "--spec", "none", "--model", name, "--dry-run"]) == 0
    assert str(here / "model") in json.loads(capsys.readouterr().out)["command"]


def test_what_is_not_here_is_named_as_not_checked() -> None:
    # no wheel is in this cache, so nothing of SGLang can be read either
    done = stackb(DEFAULT, "--model", "org/model", "--draft", "org/draft", "--check", "--format", "json")
    assert {entry["rule"] for entry in json.loads(done.stdout)["skipped"]} >= OF_MODEL | OF_PAIR


def test_a_gguf_file_is_handed_on_and_not_checked(here: Path) -> None:
    (here / "model.gguf").touch()
    done = stackb(DEFAULT, "--spec", "none", "--model", "model.gguf", "--check", "--format", "json")
    assert {entry["rule"] for entry in json.loads(done.stdout)["skipped"]} >= OF_MODEL
