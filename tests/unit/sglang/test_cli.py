"""``stackb sglang`` and ``stackb diff`` from the outside: what they print and how they end."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

from stack_builder.cli.app import run
from stack_builder.stack import lock
from stack_builder.stack.lock import Artifact, Lock
from stack_builder.trees import oci
from stack_builder.wheels.store import Store
from tests.unit.trees.oci_images import layer_tar, write_layout

from .conftest import FILES

NEWER = FILES["sglang/srt/server_args.py"].replace("--cuda-graph-bs", "--cuda-graph-bs-decode")
LOCKED = """
[stack]
name = "{name}"
description = "A test"
cuda = "13.0"
python = "3.11"
gpu = ["sm_120"]
min_driver = "580"
[requires]
sglang = "==0.5.9"
[base]
recipe = "none"
glibc = "2.36"
"""


@pytest.fixture
def wheels(make_wheel):
    return f"wheels:{make_wheel(FILES).parent}"


def test_options(wheels, capsys):
    assert run(["sglang", "options", "page", "--target", wheels]) == 0
    assert capsys.readouterr().out == "--page-size INT\n"
    assert run(["sglang", "options", "--page-size", "--target", wheels]) == 0
    assert capsys.readouterr().out == "--page-size INT\n"
    assert run(["sglang", "options", "--target", wheels, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sglang"] == "0.5.9"
    assert run(["sglang", "options", "no-such", "--target", wheels]) == 2
    assert "no option with 'no-such' in its name" in capsys.readouterr().err


def test_an_image_is_read_once(tmp_path, capsys, monkeypatch):
    """What was read is kept by the image's digests: the second look opens no layer."""
    site = "usr/lib/python3.11/site-packages"
    rows = [("usr/bin/python3", b""), *((f"{site}/{name}", text.encode()) for name, text in FILES.items())]
    newer = [(f"{site}/sglang/srt/server_args.py", NEWER.encode())]
    image = f"oci:{write_layout(tmp_path / 'image', [layer_tar(rows), layer_tar(newer)])}"
    for again in False, True:
        with monkeypatch.context() as patch:
            if again:
                patch.setattr(oci, "open_layer", None)
            assert run(["sglang", "options", "graph", "--target", image]) == 0
            assert capsys.readouterr().out == "--cuda-graph-bs-decode INT ...\n"
    assert run(["sglang", "contract", "Wrapper", "--target", image]) == 0
    assert run(["patch", "contract", "Wrapper", image]) == 0
    assert "return self.language_model.get_embed_and_head()" in capsys.readouterr().out
    empty = f"oci:{write_layout(tmp_path / 'empty', [layer_tar([*rows[:1], (f'{site}/x.py', b'')])])}"
    assert run(["sglang", "options", "--target", empty]) == 2
    assert "SGLang is not installed in this image" in capsys.readouterr().err


def test_contract(wheels, capsys):
    assert run(["sglang", "contract", "--target", wheels]) == 0
    assert "2 of 4 architectures can be targets" in capsys.readouterr().out
    assert run(["sglang", "contract", "Wrapper", "--target", wheels]) == 0
    assert "its language_model, LlamaForCausalLM, has get_embed_and_head" in capsys.readouterr().out
    assert run(["sglang", "contract", "Wrapper", "--target", wheels, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["missing"]["target"] == ["get_embed_and_head", "set_eagle3_layers_to_capture"]
    assert found["wrapper"]["inner"] == "language_model"
    assert run(["sglang", "contract", "Nobody", "--target", wheels]) == 2


def test_gates(wheels, capsys):
    assert run(["sglang", "gates", "--target", wheels, "--gpu", "sm_120", "--json"]) == 0
    gates = json.loads(capsys.readouterr().out)["gates"]
    assert gates["torch-symmetric-memory"]["sm_120"]["state"] == "absent"  # the small SGLang has none
    assert run(["sglang", "gates", "--target", wheels, "--gpu", "ampere"]) == 2


def test_check(wheels, capsys):
    line = ["--model", "m", "--speculative-algorithm", "EAGLE3", "--tp", "x"]
    assert run(["sglang", "check", "--target", wheels, "--format", "json", "--", *line]) == 1
    report = json.loads(capsys.readouterr().out)
    assert {f["rule"] for f in report["findings"]} >= {"SGL003", "SGL013", "SGL016"}
    assert {s["rule"] for s in report["skipped"]} >= {"SGL020"}
    assert run(["sglang", "check", "--target", wheels, "--", "--model", "m"]) == 0
    assert run(["sglang", "check", "--target", wheels, "--env", "X", "--", "--model", "m"]) == 2


def test_a_model_that_is_not_here_is_named_as_not_checked(wheels, tmp_path, capsys):
    def skipped(*words):
        run(["sglang", "check", "--target", wheels, "--gpu", "sm_90", "--format", "json", "--", *words])
        entries = json.loads(capsys.readouterr().out)["skipped"]
        return {entry["rule"] for entry in entries if "no folder of a model here" in entry["reason"]}

    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    of_model, of_pair = {"SGL040", "SGL042"}, {"SGL043", "SGL045"}
    draft = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "org/draft")
    assert skipped("--model", "org/model") >= of_model
    assert not skipped("--model", "org/model") & of_pair
    assert skipped("--model", "org/model", *draft) >= of_model | of_pair
    assert skipped("--model", str(tmp_path), *draft) >= of_pair
    assert not skipped("--model", str(tmp_path))


def test_doctor_judges_a_model(wheels, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Wrapper"], "num_attention_heads": 6}')
    assert run(["doctor", wheels, "--no-host", "--model", str(folder), "--tp", "4", "--format", "json"]) == 1
    rules = {f["rule"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert rules >= {"SGL040", "SGL042", "SGL054"}  # no weights, no hooks, heads that cannot be divided
    assert run(["doctor", wheels, "--draft", str(folder)]) == 2
    assert "--draft without --model" in capsys.readouterr().err


def test_a_target_without_sglang(tmp_path, capsys):
    assert run(["sglang", "options", "--target", f"wheels:{tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def two_stacks(tmp_path, make_wheel, monkeypatch):
    """Two locked stacks whose SGLang differs in one option; both wheels are in the store."""
    monkeypatch.setenv("STACKB_LOCKFILES", str(tmp_path / "stacks"))
    for name, files in (("one-1", FILES), ("two-2", {**FILES, "sglang/srt/server_args.py": NEWER})):
        wheel = make_wheel(files)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        Store().add_file(wheel, digest, wheel.name)
        folder = tmp_path / "stacks" / name
        folder.mkdir(parents=True)
        (folder / "stack.toml").write_text(LOCKED.format(name=name))
        artifact = Artifact("sglang", "0.5.9", wheel.name, digest, wheel.stat().st_size)
        locked = Lock(name, "3.11", "linux_x86_64", "uv 1", None, (artifact,))
        lock.save(folder, locked, f"sglang==0.5.9 --hash=sha256:{digest}\n")


def test_diff(two_stacks, capsys, private_cache):
    assert run(["diff", "one-1", "two-2", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["skipped"] == {}
    assert [(c["what"], c["before"], c["after"]) for c in body["changes"]["SGLang options"]] == [
        ("--cuda-graph-bs", "there", None),
        ("--cuda-graph-bs-decode", None, "there"),
    ]
    (change,) = body["changes"]["wheels"]
    assert change["note"] == "same file name, other bytes"
    shutil.rmtree(private_cache / "wheels")
    assert run(["diff", "one-1", "two-2"]) == 3  # nothing of SGLang could be compared
    out = capsys.readouterr().out
    assert "SGLang options: not compared" in out
    assert "run stackb fetch" in out.lower().replace("\n", " ")


def test_gates_of_a_stack_that_is_not_fetched_are_the_recorded_ones(two_stacks, capsys, private_cache):
    shutil.rmtree(private_cache / "wheels")
    assert run(["sglang", "gates", "--target", "stack:one-1", "--gpu", "sm_120"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("SGLang 0.5.9 (as recorded; its wheel is not fetched)\n")
    assert "sm_120  silently off" in out
    assert run(["sglang", "gates", "--target", "stack:one-1", "--gpu", "sm_110"]) == 3
