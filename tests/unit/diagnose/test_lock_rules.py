"""The LOCK rules, on the repository's own locks and on what can go wrong with them.

Hashes, versions and needed libraries are those of real files; where they come from is said where they stand.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from stack_builder.diagnose import catalogue
from stack_builder.diagnose.lock import LockFacts, judge
from stack_builder.diagnose.lock.torch import cuda_build
from stack_builder.report import Report, Severity
from stack_builder.resolve import requirements
from stack_builder.resolve.reading import Reading
from stack_builder.resolve.served import Answers, Served
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.stack.lock import Artifact, Claim, Collision, CudaNeed, Lock, Twin, Upload
from stack_builder.stack.spec import Accept, Index, Override, Winner

DAY = date(2026, 11, 29)
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256sum /dev/null
DEFAULT, REPLICA = "cu130-sglang-0.5.23", "cu130-sglang-0.5.9"


def facts_of(name: str, **changes: Any) -> LockFacts:
    folder = stack_file.find(name)
    locked, text = lock_file.read(folder)
    facts = LockFacts(stack_file.load(folder), locked, requirements.parse(text, folder), DAY)
    return replace(facts, **changes)


def poisoned(facts: LockFacts, *artifacts: Artifact, without: tuple[str, ...] = ()) -> LockFacts:
    """The same lock with some wheels exchanged, added or removed, in both files."""
    by_name = {**facts.by_name, **{a.name: a for a in artifacts}}
    kept = tuple(a for name, a in sorted(by_name.items()) if name not in without)
    lines = {a.name: requirements.Line(a.name, a.version, (a.sha256,) if a.sha256 else ()) for a in kept}
    return LockFacts(facts.spec, replace(facts.lock, artifacts=kept), lines, DAY, facts.together, facts.served)


def changed(facts: LockFacts, name: str, **changes: Any) -> LockFacts:
    return poisoned(facts, replace(facts.by_name[name], **changes))


def with_spec(facts: LockFacts, **changes: Any) -> LockFacts:
    return LockFacts(facts.spec.model_copy(update=changes), facts.lock, facts.requirements, DAY)


def found(facts: LockFacts, rule: str) -> list[Any]:
    return [finding for finding in judge(facts).findings if finding.rule == rule]


def counted(report: Report) -> set[str]:
    return {finding.rule for finding in report.counted}


# --- the repository's own locks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [DEFAULT, "cu130-sglang-0.5.17"])
def test_the_locks_from_pypi_are_clean(name: str) -> None:
    report = judge(facts_of(name, not_asked=None))
    assert (counted(report), report.skipped) == (set(), ())
    # torch_memory_saver ships its hook twice (readelf -d: libcudart.so.12 and libcudart.so.13)
    assert [(f.rule, f.severity, f.distribution) for f in report.findings] == [
        ("LOCK008", Severity.NOTE, "torch-memory-saver 0.0.10")
    ]


def test_the_replica_shows_everything_that_is_wrong_with_it() -> None:
    report = judge(facts_of(REPLICA))
    by_rule: dict[str, list[Any]] = {}
    for finding in report.findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    assert counted(report) == {"LOCK002", "LOCK005", "LOCK008", "LOCK010", "LOCK016"}
    assert [f.distribution for f in by_rule["LOCK002"]] == ["torchaudio 2.9.1+cu130"]
    assert by_rule["LOCK005"][0].detail == "The file name says 0.3.21+cu130, METADATA says 0.3.21."
    assert {f.distribution for f in by_rule["LOCK008"]} == {"torchao 0.9.0", "torch-memory-saver 0.0.9"}
    assert all("libcudart.so.12" in f.detail for f in by_rule["LOCK008"])
    uploads = by_rule["LOCK003"][0]
    assert "8 uploads of this version under 2 file names" in uploads.detail
    assert len(uploads.evidence["uploads"]) == 8
    assert uploads.evidence["uploads"][0].startswith("2026-01-14 c9a389f5")
    assert uploads.severity is Severity.NOTE  # one of them is accepted in stack.toml
    overrides = {f.object: f.detail for f in by_rule["LOCK011"]}
    assert overrides.keys() == {"flashinfer-cubin", "flashinfer-python"}
    assert "==0.6.3 of sglang 0.5.9" in overrides["flashinfer-python"]
    assert "asserts only >= 0.6.3" in overrides["flashinfer-python"]
    assert "cuda-python 12.9.0" in by_rule["LOCK016"][0].detail
    assert {s.rule for s in report.skipped} == {
        "LOCK005", "LOCK008", "LOCK015", "LOCK017", "LOCK018", "LOCK019", "LOCK022"
    }  # fmt: skip


# --- three poisoned locks ---------------------------------------------------------------------------------------------


def test_pips_silent_fall_back_to_the_cuda_12_kernel() -> None:
    # What pip-compile writes with all three indexes and exit code 0: PyPI's sgl-kernel beside torch +cu130. Libraries:
    # readelf -d of its common_ops.
    needs = tuple(
        CudaNeed(12, f"lib{x}.so.12", "sgl_kernel/sm100/common_ops.abi3.so") for x in ("cublas", "cudart", "nvrtc")
    )
    facts = facts_of(REPLICA)
    kernel = Artifact(
        name="sgl-kernel",
        version="0.3.21",
        filename="sgl_kernel-0.3.21-cp310-abi3-manylinux2014_x86_64.whl",
        sha256="57dfb3a2" + "0" * 56,
        size=536_000_000,
        metadata_version="0.3.21",
        needs_cuda=needs,
        via=("sglang",),
    )
    facts = poisoned(facts, kernel)
    cuda = [f for f in found(facts, "LOCK008") if f.distribution == "sgl-kernel 0.3.21"]
    assert [f.severity for f in cuda] == [Severity.ERROR]
    assert "libcudart.so.12 (sgl_kernel/sm100/common_ops.abi3.so)" in cuda[0].detail
    changed_stack = found(facts, "LOCK021")[0].evidence
    assert changed_stack["sgl-kernel"].startswith("stack.toml takes it from index 'sglang-cu130'")


def test_the_hash_of_an_empty_body() -> None:
    finding = found(changed(facts_of(DEFAULT), "torch", sha256=EMPTY), "LOCK004")[0]
    assert (finding.severity, finding.distribution) == (Severity.ERROR, "torch 2.14.1")
    assert "nothing (an empty body)" in finding.detail


def test_torch_moved_by_a_bare_requirement() -> None:
    # uv pip install --reinstall flashinfer-python==0.6.4 did this on 2026-03-05: PyPI's 2.10.0 outranks 2.9.1+cu130
    torch = replace(
        facts_of(REPLICA).by_name["torch"],
        version="2.10.0",
        filename="torch-2.10.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        index="default",
        requires_dist=('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"',),
    )
    finding = found(poisoned(facts_of(REPLICA), torch), "LOCK006")[0]
    assert finding.severity is Severity.ERROR
    assert "The stack requires torch==2.9.1+cu130, the lock holds 2.10.0" in finding.detail
    assert "it is a build for CUDA 12.8, the stack is for 13.0" in finding.detail
    assert "flashinfer-python" in finding.evidence["bare_torch"]
    assert "sglang" not in finding.evidence["bare_torch"]  # it pins torch


# --- one by one -------------------------------------------------------------------------------------------------------


def test_the_two_files_must_agree() -> None:
    facts = facts_of(DEFAULT)
    lines = dict(facts.requirements)
    lines["torch"] = replace(lines["torch"], version="2.14.0")
    lines["tqdm"] = replace(lines["tqdm"], hashes=("a" * 64,))
    del lines["sglang"]
    lines["extra"] = requirements.Line("extra", "1", ())
    evidence = found(replace(facts, requirements=lines), "LOCK001")[0].evidence
    assert evidence["torch"] == "version 2.14.0 in requirements.txt, 2.14.1 in artifacts.json"
    assert evidence["sglang"] == "only in artifacts.json"
    assert evidence["extra"] == "only in requirements.txt"
    assert evidence["tqdm"].startswith("hashes aaaaaaaaaaaa… in requirements.txt, ")
    assert found(replace(facts, together=False), "LOCK001")


def test_a_wheel_without_hash_in_either_file() -> None:
    facts = facts_of(DEFAULT)
    assert found(changed(facts, "tqdm", sha256=None), "LOCK002")
    lines = {**facts.requirements, "tqdm": replace(facts.requirements["tqdm"], hashes=())}
    assert [f.distribution for f in found(replace(facts, requirements=lines), "LOCK002")] == [
        facts.distribution("tqdm")
    ]


@pytest.mark.parametrize("body", ["404: Not Found", "Not Found\n", "{}", "\n"])
def test_hashes_of_error_pages(body: str) -> None:
    digest = hashlib.sha256(body.encode()).hexdigest()
    assert repr(body) in found(changed(facts_of(DEFAULT), "tqdm", sha256=digest), "LOCK004")[0].detail


def test_uploads_need_an_explicit_choice() -> None:
    facts = facts_of(REPLICA)
    undecided = found(with_spec(facts, accept=()), "LOCK003")[0]
    assert (undecided.severity, undecided.detail.endswith("stack.toml accepts none of them.")) == (Severity.ERROR, True)
    other = Accept(filename=facts.by_name["sgl-kernel"].filename, sha256="a" * 64, reason="a reason that is long")
    assert found(with_spec(facts, accept=(other,)), "LOCK003")[0].severity is Severity.ERROR
    one_each = (Upload("a-1-py3-none-any.whl", "1" * 64), Upload("a-1-py2-none-any.whl", "2" * 64))
    assert not found(changed(facts_of(DEFAULT), "tqdm", uploads=one_each), "LOCK003")


@pytest.mark.parametrize(
    ("inside", "mismatch"), [("2.14.1", False), ("2.14.1.0", False), ("2.14.1+cu130", True), ("?", True)]
)
def test_version_in_metadata(inside: str, mismatch: bool) -> None:
    assert bool(found(changed(facts_of(DEFAULT), "torch", metadata_version=inside), "LOCK005")) is mismatch


def test_torch_from_another_index_or_for_another_cuda() -> None:
    facts = facts_of(REPLICA)
    moved = found(changed(facts, "torch", index="default"), "LOCK006")[0]
    assert "takes it from index 'pytorch-cu130', the lock from 'default'" in moved.detail
    wrong = changed(facts, "torch", version="2.9.1+cu128")
    assert "CUDA 12.8" in found(wrong, "LOCK006")[0].detail
    assert not found(facts, "LOCK006")


def test_torch_that_nothing_pins_is_a_warning() -> None:
    facts = facts_of(DEFAULT)
    requires = {name: text for name, text in facts.spec.requires.items() if name != "torch"}
    finding = found(with_spec(facts, requires=requires), "LOCK006")[0]
    assert finding.severity is Severity.WARNING
    assert "flashinfer-python" in finding.detail


@pytest.mark.parametrize(
    ("version", "requires", "size", "build"),
    [
        ("2.9.1+cu130", (), None, "13.0"),
        ("2.9.1+cpu", (), None, "cpu"),
        ("2.9.1", ('nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"',), None, "12.8"),  # PyPI, x86_64
        ("2.11.0", ('cuda-toolkit[cudart,nvrtc]==13.0.2; platform_system == "Linux"',), None, "13.0"),  # PyPI
        ("2.9.1", ("filelock", "sympy>=1.13.3"), 104_000_000, "cpu"),  # PyPI, aarch64
        ("2.9.1", (), 104_000_000, "cpu"),
        ("2.9.1", (), 899_742_281, None),
    ],
)
def test_what_torch_was_built_for(version: str, requires: tuple[str, ...], size: int | None, build: str | None) -> None:
    torch = Artifact("torch", version, "torch-2.9.1-cp312-cp312-x.whl", "a" * 64, size, requires_dist=requires)
    assert cuda_build(torch) == build


def test_pypis_aarch64_torch_is_without_cuda() -> None:
    facts = changed(
        facts_of(DEFAULT),
        "torch",
        filename="torch-2.14.1-cp311-cp311-manylinux_2_28_aarch64.whl",
        requires_dist=("filelock", "sympy>=1.13.3"),
        size=104_000_000,
    )
    assert "aarch64 wheels" in found(facts, "LOCK007")[0].detail


def test_a_wheel_with_variants_is_only_noted() -> None:
    both = (CudaNeed(12, "libcudart.so.12", "a.so"), CudaNeed(13, "libcudart.so.13", "b.so"))
    facts = facts_of(DEFAULT)
    assert {f.severity for f in found(changed(facts, "tqdm", needs_cuda=both), "LOCK008")} == {Severity.NOTE}
    alone = found(changed(facts, "tqdm", needs_cuda=both[:1]), "LOCK008")
    assert [f.severity for f in alone if f.distribution.startswith("tqdm")] == [Severity.ERROR]


@pytest.mark.parametrize(
    ("filename", "needs", "too_new"),
    [
        ("tqdm-4.70.1-cp311-cp311-manylinux_2_39_x86_64.whl", None, True),
        ("tqdm-4.70.1-cp311-cp311-manylinux_2_17_x86_64.manylinux_2_39_x86_64.whl", None, False),
        ("tqdm-4.70.1-cp311-cp311-manylinux_2_17_x86_64.whl", "2.38", True),
        ("tqdm-4.70.1-cp311-cp311-manylinux_2_17_x86_64.whl", "2.4", False),
        ("tqdm-4.70.1-py3-none-any.whl", None, False),
    ],
)
def test_glibc_of_tag_and_objects(filename: str, needs: str | None, too_new: bool) -> None:
    facts = changed(facts_of(DEFAULT), "tqdm", filename=filename, glibc=needs)
    assert bool(found(facts, "LOCK009")) is too_new
    assert not found(facts, "LOCK023")


@pytest.mark.parametrize(
    "tag", ["cp312-cp312-manylinux_2_17_x86_64", "cp311-cp311-win_amd64", "cp311-cp311-manylinux_2_17_aarch64"]
)
def test_a_wheel_for_something_else(tag: str) -> None:
    assert found(changed(facts_of(DEFAULT), "tqdm", filename=f"tqdm-4.70.1-{tag}.whl"), "LOCK023")


def test_twins_on_another_index() -> None:
    # triton 3.5.1 on PyTorch's index and on PyPI: pytorch/pytorch#195141
    detail = found(facts_of(REPLICA), "LOCK010")[0].detail
    assert detail == "sha256 8ce9bcedbd12… on index 'pytorch-cu130', d2c6b915a038… on index 'default'."
    online = Answers({"tqdm": Served(("a" * 64,), None, (), (Twin("default", "b" * 64),))}, {})
    assert found(facts_of(DEFAULT, served=online), "LOCK010")


def test_overrides_expire_and_must_be_used() -> None:
    facts = facts_of(REPLICA)
    late = replace(facts, today=date(2027, 7, 1))
    assert {f.object for f in found(late, "LOCK012")} == {"flashinfer-python", "flashinfer-cubin"}
    assert not found(replace(facts, today=date(2027, 6, 30)), "LOCK012")
    idle = Override(package="tqdm", version="==4.70.1", reason="no reason at all", expires=date(2027, 1, 1))
    absent = idle.model_copy(update={"package": "no-such-package"})
    default = with_spec(facts_of(DEFAULT), override=(idle, absent))
    assert {f.object: f.detail for f in found(default, "LOCK013")} == {
        "tqdm": "Nothing in the lock requires another version than tqdm==4.70.1.",
        "no-such-package": "no-such-package is not in the lock.",
    }
    assert not found(facts, "LOCK013")


@pytest.mark.parametrize(
    ("versions", "skewed"),
    [
        ({"flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.3"}, True),
        ({"flashinfer-python": "0.6.4", "flashinfer-jit-cache": "0.6.4+cu130"}, False),
        ({"flashinfer-cubin": "0.6.4+cu129", "flashinfer-jit-cache": "0.6.4+cu130"}, True),
        ({"flashinfer-python": "0.6.4"}, False),
    ],
)
def test_companions_in_step(versions: dict[str, str], skewed: bool) -> None:
    facts = facts_of(REPLICA)
    artifacts = [
        Artifact(name, v, f"{name.replace('-', '_')}-{v}-py3-none-any.whl", "a" * 64) for name, v in versions.items()
    ]
    others = tuple({"flashinfer-python", "flashinfer-cubin"} - versions.keys())
    assert bool(found(poisoned(facts, *artifacts, without=others), "LOCK014")) is skewed


CUTE = tuple(
    Collision(
        f"lib/python3.11/site-packages/nvidia_cutlass_dsl/{n}.so",
        (Claim("nvidia-cutlass-dsl-libs-base", "a" * 64), Claim("nvidia-cutlass-dsl-libs-cu13", "b" * 64)),
    )
    for n in range(99)
)


def colliding(*winners: Winner) -> LockFacts:
    facts = facts_of(DEFAULT)
    facts = with_spec(facts, winner=(*facts.spec.winner, *winners))
    return LockFacts(
        facts.spec, replace(facts.lock, collisions=(*facts.lock.collisions, *CUTE)), facts.requirements, DAY
    )


def cutlass(winner: str, *gpu: str) -> Winner:
    packages = ("nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13")
    return Winner(winner=winner, packages=packages, gpu=gpu, reason="see sgl-project/sglang#25938")


def test_collisions_need_a_winner_on_every_gpu_of_the_stack() -> None:
    finding = found(colliding(), "LOCK015")[0]
    assert "ship 99 paths with different bytes" in finding.detail
    assert finding.detail.endswith("names no winner for sm_120, sm_100, sm_90.")
    assert finding.severity is Severity.ERROR
    blackwell = cutlass("nvidia-cutlass-dsl-libs-cu13", "sm_120", "sm_100")
    assert found(colliding(blackwell), "LOCK015")[0].detail.endswith("names no winner for sm_90.")
    hopper = cutlass("nvidia-cutlass-dsl-libs-base", "sm_90")
    assert not found(colliding(blackwell, hopper), "LOCK015")
    assert not found(colliding(cutlass("nvidia-cutlass-dsl-libs-base")), "LOCK015")


def test_a_winner_without_a_collision() -> None:
    facts = with_spec(
        facts_of(DEFAULT), winner=(*facts_of(DEFAULT).spec.winner, cutlass("nvidia-cutlass-dsl-libs-cu13"))
    )
    assert [f.detail for f in found(facts, "LOCK020")] == [
        "No path is shipped with different bytes by nvidia-cutlass-dsl-libs-base and nvidia-cutlass-dsl-libs-cu13."
    ]


def test_toolkit_drift() -> None:
    # what the default stack resolves to without its pins of the toolkit
    drifted = {"nvidia-cuda-nvcc": "13.5.37", "nvidia-nvvm": "13.5.37", "cuda-bindings": "13.4.4"}
    facts = facts_of(DEFAULT)
    facts = poisoned(facts, *(replace(facts.by_name[name], version=version) for name, version in drifted.items()))
    finding = found(facts, "LOCK016")[0]
    assert (finding.evidence["drifted"], finding.severity) == (drifted, Severity.WARNING)
    assert "nvidia-cuda-runtime 13.0.96" in finding.detail


def test_what_is_served_today() -> None:
    facts = facts_of(DEFAULT)
    torch = facts.by_name["torch"]
    answers = {
        "torch": Served((torch.sha256,), "broken on SM120", (), ()),
        "tqdm": Served((), None, (), ()),
        "numpy": Served(("f" * 64,), None, (), ()),
        "rich": Served((facts.by_name["rich"].sha256, "f" * 64), None, (), ()),
    }
    report = judge(replace(facts, served=Answers(answers, {"default": "no route"})))
    assert {(f.rule, f.distribution.split()[0]) for f in report.counted} == {
        ("LOCK017", "torch"), ("LOCK018", "tqdm"), ("LOCK019", "numpy")
    }  # fmt: skip
    assert next(s.reason for s in report.skipped if s.rule == "LOCK017") == (
        f"index 'default' gave no answer for {len(facts.lock.artifacts) - 4} wheels: no route"
    )


def test_a_stack_file_that_was_changed_after_the_lock() -> None:
    facts = facts_of(DEFAULT)
    stack = facts.spec.stack.model_copy(update={"python": "3.12"})
    requires = {**facts.spec.requires, "sglang": "==0.5.24", "vllm": "==1"}
    index = Index(name="mirror", url="https://example.org/simple", packages=("tqdm",))
    spec = {"stack": stack, "requires": requires, "index": (index,), "extras": {"sglang": ("tracing", "traicing")}}
    evidence = found(with_spec(facts, **spec), "LOCK021")[0].evidence
    assert evidence == {
        "python": "stack.toml 3.12, lock 3.11",
        "sglang": "stack.toml ==0.5.24, lock 0.5.23",
        "vllm": "stack.toml ==1, not in the lock",
        "sglang[traicing]": "sglang 0.5.23 requires nothing under that extra",
        "tqdm": "stack.toml takes it from index 'mirror', lock from 'default'",
    }


def test_requirements_inside_the_lock() -> None:
    facts = facts_of(DEFAULT)
    assert "sglang 0.5.23 requires torchaudio==2.11.0" in found(
        changed(facts, "torchaudio", version="2.10.0"), "LOCK022"
    )[0].detail  # fmt: skip
    twice = changed(facts, "tqdm", requires_dist=("numpy>=99", "numpy<100"))
    assert [f.detail for f in found(twice, "LOCK022")] == [f"{facts.distribution('tqdm')} requires numpy>=99."]
    missing = found(poisoned(facts, without=("tqdm",)), "LOCK022")
    assert any(f.detail.startswith("tqdm is not in the lock; required by ") for f in missing)
    garbled = changed(facts, "tqdm", requires_dist=("torch >= banana",))
    assert ("LOCK022", "unreadable: tqdm") in {(s.rule, s.reason) for s in judge(garbled).skipped}


def test_recorded_facts_are_compared_with_what_was_read() -> None:
    facts = facts_of(DEFAULT)
    torch = facts.by_name["torch"]
    read = Reading(
        torch.tags, torch.metadata_sha256, torch.metadata_version, torch.requires_python, torch.requires_dist,
        (CudaNeed(12, "libcudart.so.12", "torch/lib/libc10_cuda.so"),), torch.glibc,
    )  # fmt: skip
    finding = found(replace(facts, read={"torch": read}), "LOCK025")[0]
    assert finding.detail == "They differ in needs_cuda."
    assert not found(replace(facts, read={"torch": replace(read, needs_cuda=torch.needs_cuda)}), "LOCK025")


def test_every_rule_is_in_the_catalogue_and_has_a_test_here() -> None:
    tested = set(re.findall(r'"(LOCK[0-9]{3})"', Path(__file__).read_text(encoding="utf-8")))
    rules = {rule for rule in catalogue.rules() if rule.startswith("LOCK")}
    assert rules - tested == {f"LOCK0{24}"}  # it takes two resolvers: tests/unit/resolve/test_lock_command.py


def test_the_rules_do_not_mind_an_empty_lock() -> None:
    facts = facts_of(DEFAULT)
    empty = Lock(facts.lock.stack, "3.11", "linux_x86_64", "uv", None)
    report = judge(LockFacts(facts.spec, empty, {}, DAY))
    assert counted(report) == {"LOCK021"}
