"""``stackb lock`` from end to end, on small wheels and a loopback index."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from stack_builder import resources
from stack_builder.cli.app import run
from stack_builder.errors import IntegrityError
from stack_builder.resolve.piptools import PipTools
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def stackb(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def stack(default_index, stack_folder) -> Path:
    """A stack of three packages that locks cleanly."""
    default_index.add("sglang", "0.5.23", "torch==2.14.1", "numpy>=2")
    default_index.add("torch", "2.14.1", "numpy", "cuda-toolkit==13.0.3")
    default_index.add("cuda-toolkit", "13.0.3")
    default_index.add("numpy", "2.3.5")
    return stack_folder(sglang="==0.5.23", torch="==2.14.1")


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rules(out: str) -> set[str]:
    report = json.loads(out)
    jsonschema.validate(report, json.loads((resources.checks() / "schemas" / "report-1.json").read_text()))
    return {finding["rule"] for finding in report["findings"] if finding["severity"] != "note"}


def test_a_lock_is_written_once_and_then_stays_the_same(stack: Path, stackb: Run, default_index) -> None:
    code, out, _ = stackb("lock", stack, "--format", "json")
    assert (code, rules(out)) == (0, set())
    assert json.loads(out)["facts"]["changes"] == [
        "cuda-toolkit: new -> 13.0.3", "numpy: new -> 2.3.5", "sglang: new -> 0.5.23", "torch: new -> 2.14.1"
    ]  # fmt: skip
    locked = lock_file.load(stack)
    torch = locked.artifact("torch")
    row = default_index.rows["torch"][0]
    assert (torch.sha256, torch.size, torch.via) == (row.sha256, len(row.data), ("sglang",))
    assert (torch.requires_dist, torch.metadata_version) == (("numpy", "cuda-toolkit==13.0.3"), "2.14.1")
    assert locked.collisions == ()
    before = snapshot(stack)
    default_index.add("numpy", "2.4.0")  # newer, but nothing asks for it
    code, out, _ = stackb("lock", stack)
    assert (code, "->" in out) == (0, False)
    assert snapshot(stack) == before
    code, out, _ = stackb("lock", stack, "--check", "--format", "json")
    assert (code, rules(out)) == (0, set())


def test_upgrade_moves_the_named_package_only(stack: Path, stackb: Run, default_index) -> None:
    stackb("lock", stack)
    default_index.add("numpy", "2.4.0")
    default_index.add("cuda-toolkit", "13.0.3.1")
    dry, dry_out, _ = stackb("lock", stack, "--upgrade", "NumPy", "--dry-run")
    assert lock_file.load(stack).artifact("numpy").version == "2.3.5"
    code, out, _ = stackb("lock", stack, "--upgrade", "NumPy")
    assert (code, out) == (dry, dry_out)
    assert [line for line in out.splitlines() if "->" in line] == ["numpy: 2.3.5 -> 2.4.0"]
    assert lock_file.load(stack).artifact("numpy").version == "2.4.0"
    assert stackb("lock", stack, "--upgrade", "numpi")[0] == 2
    _, out, _ = stackb("lock", stack, "--upgrade", ":all:", "--dry-run")
    assert "->" not in out  # cuda-toolkit is pinned by torch


def test_nothing_is_written_while_a_rule_finds_an_error(stack: Path, stackb: Run, default_index) -> None:
    stackb("lock", stack)
    before = snapshot(stack)
    default_index.add("numpy", "2.5.0+cu130", inner_version="2.5.0")
    code, out, err = stackb("lock", stack, "--upgrade", "numpy", "--format", "json")
    assert (code, rules(out)) == (1, {"LOCK005"})
    assert "stays as it is" in err
    assert snapshot(stack) == before


def test_colliding_wheels_are_refused_until_a_winner_is_named(stack: Path, stackb: Run, default_index) -> None:
    same = {"shared/same.py": b"one\n"}
    default_index.add("left", "1", files={**same, "shared/lib.so": b"left\n"})
    default_index.add("right", "1", files={**same, "shared/lib.so": b"right\n"})
    text = (stack / "stack.toml").read_text()
    (stack / "stack.toml").write_text(text.replace("[requires]", '[requires]\nleft = "==1"\nright = "==1"'))
    code, out, _ = stackb("lock", stack, "--format", "json")
    finding = next(f for f in json.loads(out)["findings"] if f["rule"] == "LOCK015")
    assert (code, finding["evidence"]["paths"]) == (1, ["lib/python3.11/site-packages/shared/lib.so"])
    assert not (stack / "artifacts.json").exists()
    with (stack / "stack.toml").open("a") as file:
        file.write('[[winner]]\npackages = ["left", "right"]\nwinner = "right"\nreason = "right is right"\n')
    assert stackb("lock", stack)[0] == 0
    assert [c.path for c in lock_file.load(stack).collisions] == ["lib/python3.11/site-packages/shared/lib.so"]


def test_check_sees_what_happened_to_the_index(stack: Path, stackb: Run, default_index) -> None:
    stackb("lock", stack)
    default_index.rows["torch"][0].yanked = "wrong symbols"
    default_index.rows["numpy"].clear()
    default_index.rows["sglang"][0].sha256 = "f" * 64
    code, out, _ = stackb("lock", stack, "--check", "--format", "json")
    assert (code, rules(out)) == (1, {"LOCK017", "LOCK018", "LOCK019"})
    code, out, _ = stackb("lock", stack, "--check", "--offline", "--format", "json")
    assert (code, rules(out)) == (0, set())
    assert {s["rule"] for s in json.loads(out)["skipped"]} == {"LOCK017", "LOCK018", "LOCK019"}


def test_an_interruption_between_the_two_files_is_noticed(stack: Path, stackb: Run, default_index) -> None:
    stackb("lock", stack)
    old = snapshot(stack)
    default_index.add("numpy", "2.4.0")
    stackb("lock", stack, "--upgrade", "numpy")
    (stack / "artifacts.json").write_bytes(old["artifacts.json"])  # killed after the first of the two renames
    with pytest.raises(IntegrityError, match="is not the one that"):
        lock_file.load(stack)
    code, out, _ = stackb("lock", stack, "--check", "--offline", "--format", "json")
    assert (code, rules(out)) == (1, {"LOCK001"})
    assert stackb("lock", stack)[0] == 0
    lock_file.load(stack)


def test_both_resolvers_agree_and_a_difference_is_refused(stack: Path, stackb: Run, monkeypatch) -> None:
    answers = []
    resolve = PipTools.resolve
    monkeypatch.setattr(PipTools, "resolve", lambda self, request: answers.append(resolve(self, request)) or answers[0])
    code, out, _ = stackb("lock", stack, "--cross-check", "--format", "json")
    assert (code, rules(out)) == (0, set())
    assert lock_file.load(stack).resolver.startswith("uv ")
    assert json.loads(out)["facts"]["cross_checked_with"][0].startswith("pip-tools ")
    other = [replace(p, sha256="a" * 64) if p.name == "torch" else p for p in answers[0] if p.name != "numpy"]
    monkeypatch.setattr(PipTools, "resolve", lambda self, request: tuple(other))
    before = snapshot(stack)
    code, out, _ = stackb("lock", stack, "--cross-check", "--format", "json")
    evidence = next(f["evidence"] for f in json.loads(out)["findings"] if f["rule"] == "LOCK024")
    assert (code, set(evidence)) == (1, {"numpy", "torch"})
    assert evidence["numpy"] == "2.3.5 / absent"
    assert snapshot(stack) == before


def test_a_package_of_an_explicit_index_that_nobody_requires_stays_out(
    stack: Path, stackb: Run, default_index, serve_index, monkeypatch
) -> None:
    extra = serve_index()
    extra.add("torch", "2.14.1", "cuda-toolkit==13.0.3")
    extra.add("torchaudio", "2.11.0")
    index = spec.Index.model_construct(name="extra", url=extra.url, packages=("torch", "torchaudio"))
    with_index = spec.load(stack).model_copy(update={"index": (index,)})
    monkeypatch.setattr(spec, "load", lambda _: with_index)
    code, out, _ = stackb("lock", stack, "--format", "json")
    locked = lock_file.load(stack)
    assert (code, rules(out)) == (1, {"LOCK010"})  # a warning: written all the same
    assert {a.name: a.index for a in locked.artifacts} == {
        "sglang": "default", "torch": "extra", "numpy": "default", "cuda-toolkit": "default"
    }  # fmt: skip
    assert [twin.sha256 for twin in locked.artifact("torch").twins] == [default_index.rows["torch"][0].sha256]


def test_of_several_uploads_the_accepted_one_is_locked(
    stack: Path, stackb: Run, serve_index, monkeypatch, tmp_path: Path
) -> None:
    extra = serve_index()
    uploads = [
        extra.add("torch", "2.14.1", "cuda-toolkit==13.0.3", files={"torch/x.py": f"{day}\n".encode()}, uploaded=day)
        for day in ("2026-02-22T13:56:00Z", "2026-02-22T22:18:00Z", "2026-02-24T21:36:00Z")
    ]
    index = spec.Index.model_construct(name="extra", url=extra.url, packages=("torch",))
    plain = spec.load(stack)
    for chosen in (None, uploads[1], uploads[2]):
        accept = () if chosen is None else (
            spec.Accept(filename=chosen.filename, sha256=chosen.sha256, reason="it was tested"),
        )  # fmt: skip
        with_index = plain.model_copy(update={"index": (index,), "accept": accept})
        monkeypatch.setattr(spec, "load", lambda _, result=with_index: result)
        _, out, _ = stackb("lock", stack, "--format", "json")
        finding = next(f for f in json.loads(out)["findings"] if f["rule"] == "LOCK003")
        assert finding["severity"] == ("error" if chosen is None else "note")
        assert [line.split()[0] for line in finding["evidence"]["uploads"]] == [row.uploaded for row in uploads]
        assert (stack / "artifacts.json").exists() is (chosen is not None)
        if chosen is not None:
            assert lock_file.load(stack).artifact("torch").sha256 == chosen.sha256


@pytest.mark.parametrize(
    ("poison", "message"),
    [
        (lambda f: (f / "stack.toml").write_text("nonsense = 1\n"), "stack.toml: "),
        (lambda f: (f / "artifacts.json").write_text("{"), "not a lock"),
        (lambda f: (f / "artifacts.json").write_text("[" * 100_000), "not a lock"),
        (lambda f: (f / "artifacts.json").unlink(), "has no lock"),
        (lambda f: (f / "requirements.txt").write_bytes(b"\xff"), "not UTF-8"),
        (lambda f: (f / "requirements.txt").write_text("-r /etc/passwd\n"), "line 1 is not"),
        (lambda f: shutil.rmtree(f), "no stack"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path: Path, stackb: Run, poison, message: str) -> None:
    stack = shutil.copytree(resources.lockfiles() / "cu130-sglang-0.5.23", tmp_path / "stack")
    poison(stack)
    code, out, err = stackb("lock", stack, "--check", "--offline")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err


@pytest.mark.parametrize("option", ["--dry-run", "--cross-check", "--upgrade=tqdm", "--resolver=uv"])
def test_check_takes_no_options_of_a_resolution(stack: Path, stackb: Run, option: str) -> None:
    assert stackb("lock", stack, "--check", option)[0] == 2


def test_a_lock_that_cannot_be_read_is_made_anew(stack: Path, stackb: Run) -> None:
    stackb("lock", stack)
    good = snapshot(stack)
    (stack / "artifacts.json").write_text("{")
    code, _, err = stackb("lock", stack)
    assert (code, snapshot(stack)) == (0, good)
    assert "is not used: " in err


def test_the_replica_is_named_for_all_that_is_wrong_with_it(stackb: Run) -> None:
    code, out, _ = stackb("lock", "cu130-sglang-0.5.9", "--check", "--offline")
    assert code == 1
    said = " ".join(out.split())
    uploads = ["c9a389f5", "970e10c1", "3a0b3eb1", "b1f78776", "4be1313f8280", "9c4131ad", "d751c4dc", "62d41f63067b"]
    for text in (
        *uploads,
        "The file name says 0.3.21+cu130, METADATA says 0.3.21.",
        "torchaudio-2.9.1+cu130-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-memory-saver needs libcudart.so.12",
        "torchao needs libcudart.so.12",
        "Reason: The founding report ran 0.6.4",
        "Reason: flashinfer-python refuses to be imported beside a flashinfer-cubin of another version.",
    ):
        assert text in said, text


@pytest.mark.parametrize("arguments", [(), ("--check", "--offline")])
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('recipe = "debian-bookworm"', 'recipe = "debian-nope"', "no base recipe 'debian-nope'. Choose one of"),
        ("exclude_newer = .*", "exclude_newer = 2999-01-01", "exclude_newer is 2999-01-01, which is to come"),
    ],
)
def test_what_no_build_takes_is_refused(
    stack: Path, stackb: Run, arguments: tuple[str, ...], old: str, new: str, said: str
) -> None:
    file = stack / "stack.toml"
    text, times = re.subn(old, new, file.read_text())
    assert times == 1
    file.write_text(text)
    before = snapshot(stack)
    code, out, err = stackb("lock", stack, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert snapshot(stack) == before
