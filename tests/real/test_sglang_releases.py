"""What is read from real releases: options against SGLang's own parser, contract, gates and records by known figures.

By default four releases; ``STACKB_TEST_RELEASES`` names others, or ``all`` for every recorded one. Wheels are kept in
pytest's cache folder.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest
from uv import find_uv_bin

from stack_builder import resources
from stack_builder.bench.policy import make_policy, mechanism
from stack_builder.bench.results import leave_out, read
from stack_builder.diagnose.sglang import launch
from stack_builder.sglang import options, record, release, source
from stack_builder.sglang.contract import contract as contracts
from stack_builder.sglang.contract import models
from stack_builder.sglang.contract.callsites import Role
from stack_builder.sglang.contract.contract import delegation_for
from stack_builder.sglang.contract.registry import Registry
from stack_builder.sglang.gates import table
from tests.real.parsers import differences

pytestmark = [pytest.mark.online, pytest.mark.timeout(600)]

ALL = ["0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.16", "0.5.17", "0.5.20", "0.5.23"]
ASKED = os.environ.get("STACKB_TEST_RELEASES")
RELEASES = ALL if ASKED == "all" else (ASKED or "0.5.9 0.5.13 0.5.14 0.5.23").split()
CONTRACTS = RELEASES if ASKED else ["0.5.9", "0.5.23"]
FOLDER = Path(__file__).parent
NEEDED_BY_THE_ORACLES = ("msgspec", "numpy", "pyyaml", "packaging", "typing_extensions", "pydantic")

# Satisfied, could delegate, architectures: the first two read by hand and by an independent prototype from the same
# wheels. The third is what SGLang's own registry gives (test_architectures_are_those_of_the_real_registry). The
# prototype counted 177 and 288: it lost Qwen2ForSequenceClassification of 0.5.9, whose file begins with a byte order
# mark, and Dots3NoteForCausalLM and Dots3NoteForCausalLMNextN of 0.5.23, whose classes stand in a sub-package.
COUNTS = {"0.5.9": (38, 26, 178), "0.5.10": (41, 25, 193), "0.5.17": (61, 31, 241), "0.5.23": (70, 33, 290)}

HAND_LIST_059 = {
    ("draft", "forward", True),
    ("draft", "hot_token_id", True),
    ("draft", "load_lm_head_from_target", False),
    ("draft", "set_embed", True),
    ("draft", "set_embed_and_head", False),
    ("target", "forward", True),
    ("target", "get_embed_and_head", True),
    ("target", "set_eagle3_layers_to_capture", True),
}
ADDED_BY_0523 = {
    ("target", "lm_head", False),
    ("target", "get_embed_and_head_for_draft", False),
    ("draft", "set_lm_head_from_target", False),
}
FOUNDING = (
    "--model-path m --tp-size 8 --enable-flashinfer-allreduce-fusion --attention-backend flashinfer "
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --max-running-requests 64"
)


@pytest.fixture(scope="session")
def wheel(request):
    """Give the wheel of a release, downloaded once."""
    folder = request.config.cache.mkdir("sglang-wheels")

    @cache
    def get(version: str) -> Path:
        found = list(folder.glob(f"sglang-{version}-*.whl"))
        if not found:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
            command += ["--python-version", "3.12", "--platform", "manylinux_2_34_x86_64", "--platform", "any"]
            with tempfile.TemporaryDirectory(dir=folder) as fresh:  # never half a wheel where another process looks
                done = subprocess.run([*command, "-d", fresh, f"sglang=={version}"], capture_output=True, text=True)
                if done.returncode:
                    pytest.skip(f"the package index does not give sglang {version}: {done.stderr.splitlines()[-1:]}")
                (came,) = Path(fresh).iterdir()
                found = [came.replace(folder / came.name)]
        return found[0]

    return get


@pytest.fixture(scope="session")
def tree(wheel):
    return cache(lambda version: source.from_wheel(wheel(version)))


@pytest.fixture(scope="session")
def contract_of(tree):
    return cache(lambda version: contracts.read(tree(version)))


@pytest.fixture(scope="session")
def gates_of(tree):
    return cache(lambda version: table.derive(tree(version)))


@pytest.fixture(scope="session")
def ask(wheel, tmp_path_factory):
    """Run an oracle on the sources of a release, with stand-ins for what is not installed; give what it prints."""

    @cache
    def unpacked(version: str) -> Path:
        site = tmp_path_factory.mktemp(f"sglang-{version}")
        with zipfile.ZipFile(wheel(version)) as archive:
            archive.extractall(site, [n for n in archive.namelist() if n.startswith("sglang/") and n.endswith(".py")])
        return site

    def run(oracle: str, version: str, *words: object) -> list | dict:
        packages = [word for name in NEEDED_BY_THE_ORACLES for word in ("--with", name)]
        uv = [find_uv_bin(), "run", "-q", "--no-project", "--python", sys.executable, *packages, "python"]
        done = subprocess.run(
            [*uv, FOLDER / oracle, unpacked(version), *map(str, words)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("version", RELEASES)
def test_options_equal_the_real_parser(version, tree, ask):
    """Names, destinations, numbers of values, types, choices, defaults: no difference."""
    assert differences(options.read(tree(version)), ask("real_parser.py", version)) == []


@pytest.mark.parametrize("version", CONTRACTS)
def test_architectures_are_those_of_the_real_registry(version, contract_of, ask):
    assert sorted(contract_of(version).registry.architectures) == ask("real_registry.py", version)


@pytest.mark.parametrize("version", CONTRACTS)
def test_the_contract(version, contract_of):
    contract = contract_of(version)
    asked = {(r.role.value, r.attribute, r.required) for r in contract.requirements}
    if version == "0.5.9":
        assert asked == HAND_LIST_059
        assert contract.satisfying(Role.DRAFT) == ("LlamaForCausalLMEagle3",)
        assert contract.traps.default_layers[0] == "sglang/srt/model_executor/cuda_graph_runner.py:365"
    if version == "0.5.23":
        assert asked == HAND_LIST_059 | ADDED_BY_0523
        assert contract.traps.default_layers == ()
    if version in COUNTS:
        satisfied, wrappers, architectures = COUNTS[version]
        assert len(contract.satisfying(Role.TARGET)) == satisfied
        assert len(contract.wrappers()) == wrappers
        assert len(contract.registry.architectures) == architectures
    kimi = contract.missing("KimiK25ForConditionalGeneration")
    assert kimi == (("get_embed_and_head", "set_eagle3_layers_to_capture") if version == "0.5.9" else ())


@pytest.mark.parametrize("version", CONTRACTS)
def test_every_delegation_completes_its_wrapper(version, tree, contract_of):
    """Put the methods into the wrapper's file and derive again: nothing is missing any more."""
    contract = contract_of(version)
    complete = [w.architecture for w in contract.wrappers() if w.complete]
    assert complete
    for architecture in complete:
        delegation = delegation_for(tree(version), contract, architecture)
        text = tree(version).read(delegation.path).decode("utf-8-sig")
        node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == delegation.class_name)
        lines = text.splitlines()
        lines[node.end_lineno : node.end_lineno] = ["", *delegation.methods.values()]
        patched = models.scan(delegation.path, "\n".join(lines).encode())
        files = [patched if f.path == delegation.path else f for f in contract.registry.files]
        again = contracts.Contract(version, contract.requirements, Registry(files), contract.traps)
        assert again.missing(architecture) == (), architecture


@pytest.mark.parametrize("version", RELEASES)
def test_the_record_of_gates_is_what_the_source_gives(version, tree, gates_of):
    derived, recorded = gates_of(version), table.recorded(version)
    assert recorded is not None
    for feature, gates in derived.gates.items():
        for gpu, gate in gates.items():
            noted = recorded.gate(feature, gpu)
            assert (noted.state, noted.step, noted.at) == (gate.state, gate.step, gate.at), f"{feature} on {gpu}"
            if gate.at:
                path, line = gate.at.split(" ")[0].rsplit(":", 1)
                assert int(line) <= len(tree(version).read(path).splitlines())


@pytest.mark.parametrize(
    ("version", "rule"), [("0.5.9", "SGL020"), ("0.5.13", "SGL021"), ("0.5.14", "SGL022"), ("0.5.23", "SGL022")]
)
def test_the_founding_line(version, rule, tree, gates_of):
    if version not in RELEASES:
        pytest.skip("not among the releases asked for")
    findings = launch.judge(FOUNDING.split(), release.read(tree(version)), table=gates_of(version), gpu="sm_120")
    (fusion,) = [f for f in findings if f.evidence.get("feature") == "flashinfer-allreduce-fusion"]
    assert fusion.rule == rule
    advice = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1"
    assert any(advice in text for text in fusion.fix)
    assert not [f for f in findings if f.rule in ("SGL001", "SGL002", "SGL003")]


@pytest.mark.skipif(ASKED != "all", reason="needs all recorded releases: STACKB_TEST_RELEASES=all")
def test_the_record_is_written_the_same_again(tree, gates_of):
    rendered = record.render([gates_of(v) for v in ALL], [options.read(tree(v)) for v in ALL])
    assert len(rendered) == 2
    for path, text in rendered.items():
        assert path.is_relative_to(resources.checks())
        assert path.read_text() == text


MEASURED = read(FOLDER.parents[1] / "docs" / "bench" / "h200" / "pair.json")
STEPS = {arm.name: arm.facts.arguments.get("speculative_num_steps", 0) for arm in MEASURED.arms}
MOST = max(STEPS.values())


@pytest.mark.parametrize("version", [version for version in RELEASES if mechanism(version).mechanism == "batch"])
@pytest.mark.parametrize("fewer", [True, False])
def test_a_measured_policy_is_what_the_release_makes_of_it(version, fewer, ask, tmp_path):
    """Of an H200: the policy goes on to arms of fewer steps; without them to none, which came with 0.5.14."""
    measured = leave_out(MEASURED, () if fewer else [name for name, count in STEPS.items() if 0 < count < MOST])
    policy = make_policy(measured, "0.5.14")  # and not the version's own: what it would refuse is to be seen
    assert len(policy.rows) > 1
    assert fewer or [row.steps for row in policy.rows] == [MOST, 0]
    file = tmp_path / "adaptive.json"
    file.write_text(policy.config)
    graphs = [1, 2, 4, 8, *range(16, 257, 8)]
    if 0 in {row.steps for row in policy.rows} and mechanism(version).lowest_step > 0:
        assert "list of positive ints" in ask("real_adaptive.py", version, file, policy.rows[0].steps, [])["error"]
        assert make_policy(measured, version).config is None
        return
    for sizes in ([], graphs):
        told = ask("real_adaptive.py", version, file, policy.rows[0].steps, sizes)
        assert told["candidates"] == sorted(row.steps for row in policy.rows)
        for batch, used in told["used"].items():
            padded = next((size for size in sizes if size >= int(batch)), int(batch))
            assert used == [[row.steps for row in policy.rows if row.batch <= padded][-1]]
