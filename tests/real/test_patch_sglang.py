"""The shipped patches on SGLang's own releases. Expected states and figures were read off the sources by hand."""

from __future__ import annotations

import ast
import base64
import io
import os
import py_compile
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from stack_builder.diagnose.patches.site import Site
from stack_builder.errors import IntegrityError
from stack_builder.patch import apply, revert
from stack_builder.patch.transaction import recover
from stack_builder.patchset import model
from stack_builder.patchset.delegation import from_delegation
from stack_builder.patchset.distribution import Distribution
from stack_builder.patchset.model import Hardware, Topology
from stack_builder.patchset.operations import EnsureDictKey
from stack_builder.patchset.plan import plan
from stack_builder.patchset.states import State, assess
from stack_builder.patchset.wheel import from_wheel
from stack_builder.sglang.contract import contract as contracts
from stack_builder.sglang.source import from_directory
from stack_builder.wheels.archive import WheelArchive
from stack_builder.wheels.http import Http
from stack_builder.wheels.index import DEFAULT, Index, indexes_of
from tests.unit.patch.conftest import tree
from tests.unit.patch.interruption import killed_before_step

pytestmark = pytest.mark.online

TABLES = "sglang/srt/distributed/device_communicators/all_reduce_utils.py"
COMMUNICATOR = "sglang/srt/distributed/device_communicators/torch_symm_mem.py"
KIMI = "sglang/srt/models/kimi_k25.py"
GRAPHS = "sglang/srt/model_executor/cuda_graph_runner.py"
RUNNER = "sglang/srt/model_executor/model_runner.py"

SERIES = ("symm-mem-sm12", "kimi-k25-eagle3", "eagle3-graph-layers")
OBSOLETE, APPLIES = State.OBSOLETE, State.APPLIES
# The releases in which each patch is still wanted: KeyError on capability 12 until 0.5.13, no delegation in 0.5.9,
# graphs captured with the default layers in 0.5.9 and 0.5.10.
STATES = {
    "0.5.9": (APPLIES, APPLIES, APPLIES),
    "0.5.10": (APPLIES, OBSOLETE, APPLIES),
    "0.5.11": (APPLIES, OBSOLETE, OBSOLETE),
    "0.5.12": (APPLIES, OBSOLETE, OBSOLETE),
    "0.5.13": (APPLIES, OBSOLETE, OBSOLETE),
    "0.5.14": (OBSOLETE, OBSOLETE, OBSOLETE),
    "0.5.16": (OBSOLETE, OBSOLETE, OBSOLETE),
    "0.5.17": (OBSOLETE, OBSOLETE, OBSOLETE),
    "0.5.20": (OBSOLETE, OBSOLETE, OBSOLETE),
    "0.5.23": (OBSOLETE, OBSOLETE, OBSOLETE),
}
Release = Callable[[str], Distribution]


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with Http() as http:
        yield indexes_of(None, http)[DEFAULT]


@pytest.fixture(scope="module")
def release(index: Index) -> Iterator[Release]:
    """A release by version; only the parts of its wheel that are read are fetched."""
    with ExitStack() as stack:

        @cache
        def get(version: str) -> Distribution:
            wheels = [f for f in index.files("sglang") if f.filename.startswith(f"sglang-{version}-")]
            wheel = next(f for f in wheels if f.filename.endswith(("-py3-none-any.whl", "_x86_64.whl")))
            distribution = from_wheel(WheelArchive(stack.enter_context(index.open(wheel)), wheel.filename))
            return Distribution(distribution.name, version, distribution.dist_info, cache(distribution.read))

        yield get


@pytest.fixture
def site(release: Release, tmp_path: Path) -> Site:
    """What the series touches of 0.5.9, installed."""
    return installed(release("0.5.9"), tmp_path / "site")


def installed(distribution: Distribution, root: Path) -> Site:
    for path in (TABLES, COMMUNICATOR, KIMI, GRAPHS, RUNNER, distribution.record_path):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(distribution.read(path))
    return Site(root.resolve())


def unpacked(index: Index, root: Path) -> zipfile.ZipFile:
    file = next(f for f in index.files("sglang") if f.filename == "sglang-0.5.9-py3-none-any.whl")
    with index.open(file) as remote:
        wheel = zipfile.ZipFile(io.BytesIO(remote.read()))
    wheel.extractall(root)
    return wheel


def functions(source: bytes, cls: str) -> dict[str, ast.FunctionDef]:
    owner = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == cls)
    return {node.name: node for node in owner.body if isinstance(node, ast.FunctionDef)}


def execute(*nodes: ast.stmt, **space: object) -> dict[str, object]:
    exec(compile(ast.Module(list(nodes), []), "extract", "exec"), space)
    return space


@pytest.mark.parametrize("version", STATES)
def test_states(release: Release, version: str) -> None:
    found = assess(model.series(SERIES), release(version))
    assert [status.state for status in found] == list(STATES[version])


@pytest.mark.parametrize(
    ("hardware", "state"),
    [
        (Hardware("sm_120", Topology.PCIE), State.NO_EFFECT),
        (Hardware("sm_121"), State.NO_EFFECT),
        (Hardware("sm_90", Topology.NVSWITCH), State.NO_EFFECT),
        (Hardware("sm_120", Topology.NVSWITCH), State.APPLIES),
    ],
)
def test_symmetric_memory_says_where_it_changes_nothing(release: Release, hardware: Hardware, state: State) -> None:
    assert assess(model.series(SERIES[:1]), release("0.5.9"), hardware)[0].state is state


def test_recorded_hashes_are_those_of_the_releases(release: Release) -> None:
    count = 0
    for patch in model.series(SERIES):
        for known in patch.spec.known:
            row = base64.urlsafe_b64encode(bytes.fromhex(known.before)).rstrip(b"=").decode()
            for version in known.versions:
                assert f"{known.file},sha256={row}," in release(version).record.data.decode()
                count += 1
    assert count == 15  # two tables in five releases, one module in one, two modules in two


@pytest.mark.parametrize("version", STATES)
def test_the_tables_can_be_extended_in_every_release(release: Release, version: str) -> None:
    """Until 0.5.23 upstream has not added 12; the entries of 10 are copied, whatever they are."""
    tables, communicator = (
        operation.apply(release(version).read(operation.file))
        for operation in model.series(SERIES[:1])[0].spec.operation
        if isinstance(operation, EnsureDictKey)
    )
    mib = 1 << 20
    sizes = execute(*ast.parse(tables).body)["TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES"]
    assert isinstance(sizes, dict)
    assert sizes[12] == sizes[10] == {2: 64 * mib, 4: 64 * mib, 6: 128 * mib, 8: 128 * mib}
    assert set(sizes) == {9, 10, 12}
    owner = next(n for n in ast.parse(communicator).body if isinstance(n, ast.ClassDef))
    table = next(n for n in owner.body if isinstance(n, ast.Assign))
    worlds = execute(table)["_WORLD_SIZES_MULTIMEM"]
    tens = [4, 6, 8] if version in ("0.5.16", "0.5.17", "0.5.20", "0.5.23") else [6, 8]
    assert worlds == {9: [4, 6, 8], 10: tens, 12: tens}


@pytest.mark.parametrize("version", STATES)
def test_a_plain_diff_would_not_do(release: Release, version: str, tmp_path: Path) -> None:
    """Why operations and not a diff: from 0.5.16 on the context has changed, and the diff is refused."""
    diff = plan(release("0.5.9"), model.series(SERIES[:1])).diff()
    for path in (TABLES, COMMUNICATOR):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(release(version).read(path))
    patch = subprocess.run(["git", "apply", "--check"], input=diff, cwd=tmp_path, capture_output=True, check=False)
    assert (patch.returncode == 0) == (version in ("0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14"))


def test_a_whole_wheel_there_and_back(tmp_path: Path, index: Index) -> None:
    wheel = unpacked(index, tmp_path / "site")
    site = Site((tmp_path / "site").resolve())
    original = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    apply(site, model.series(SERIES))
    patched = tree(site.root)
    changed = {path for path in original if patched[path] != original[path]}
    assert changed == {TABLES, COMMUNICATOR, KIMI, GRAPHS, RUNNER, "sglang-0.5.9.dist-info/RECORD"}
    assert apply(site, model.series(SERIES)) == ()
    assert tree(site.root) == patched
    for path in changed - {"sglang-0.5.9.dist-info/RECORD"}:
        py_compile.compile(str(site.root / path), cfile=str(tmp_path / "out.pyc"), doraise=True)
    assert contracts.read(from_directory(site.root)).missing("KimiK25ForConditionalGeneration") == ()
    revert(site)
    assert tree(site.root) == original


def test_every_wrapper_that_could_delegate_does_so_with_its_patch(tmp_path: Path, index: Index) -> None:
    """Facts of 0.5.9: 26 wrappers lack what their inner model has; in one of them the inner model has only half."""
    unpacked(index, tmp_path / "site")
    sources = from_directory(tmp_path / "site")
    before = contracts.read(sources)
    wrappers = before.wrappers()
    assert len(wrappers) == 26
    assert "KimiK25ForConditionalGeneration" in {wrapper.architecture for wrapper in wrappers}
    patches = []
    for number, wrapper in enumerate(wrappers):
        found = contracts.delegation_for(sources, before, wrapper.architecture)
        patches.append(
            from_delegation(
                patch_id=f"delegate-{number}",
                distribution="sglang",
                version="0.5.9",
                file=found.path,
                cls=found.class_name,
                methods=found.methods,
                reason="the test wants every wrapper patched",
            )
        )
    apply(Site((tmp_path / "site").resolve()), patches)
    after = contracts.read(from_directory(tmp_path / "site"))
    assert {w.architecture: after.missing(w.architecture) for w in wrappers if after.missing(w.architecture)} == {
        w.architecture: tuple(sorted(set(w.missing) - set(w.delegable))) for w in wrappers if not w.complete
    }


def test_a_file_changed_by_hand_has_drifted_and_is_left_alone(site: Site) -> None:
    (site.root / KIMI).write_bytes(site.read(KIMI) + b"\n")
    before = tree(site.root)
    states = [status.state for status in assess(model.series(SERIES), site.distributions()["sglang"])]
    assert states == [State.APPLIES, State.DRIFTED, State.APPLIES]
    with pytest.raises(IntegrityError, match="is not the file that RECORD lists"):
        apply(site, model.series(SERIES))
    assert tree(site.root) == before


def test_a_kill_at_any_step_leaves_the_old_or_the_new_state(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    start = site.root.parent / "start"
    shutil.copytree(site.root, start)
    old = tree(site.root)
    apply(site, model.series(SERIES))
    new = tree(site.root)
    outcomes = []
    while True:
        shutil.rmtree(site.root)
        shutil.copytree(start, site.root)
        if not killed_before_step(6 * len(outcomes), lambda: apply(site, model.series(SERIES))):
            break
        recover(site)
        assert tree(site.root) in (old, new)
        outcomes.append(tree(site.root) == new)
    assert outcomes == sorted(outcomes)
    assert {True, False} == set(outcomes)


def test_kimi_passes_its_calls_on(site: Site) -> None:
    cls = "KimiK25ForConditionalGeneration"
    required = {"get_embed_and_head", "set_eagle3_layers_to_capture"}
    assert not required & set(functions(site.read(KIMI), cls))
    apply(site, model.series(SERIES))
    methods = functions(site.read(KIMI), cls)
    inner: list[tuple[str, tuple[object, ...]]] = []

    class LanguageModel:
        def __getattr__(self, name: str) -> Callable[..., str]:
            return lambda *given: inner.append((name, given)) or name

    class Wrapper:
        language_model = LanguageModel()

    for name, given in {
        "get_embed_and_head": (),
        "set_embed_and_head": (1, 2),
        "set_eagle3_layers_to_capture": ([1, 2],),
    }.items():
        method = execute(methods[name])[name]
        assert callable(method)
        assert method(Wrapper(), *given) == name
        assert inner[-1] == (name, given)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10"])
def test_graphs_are_captured_with_the_drafts_layers(release: Release, tmp_path: Path, version: str) -> None:
    """Both places where 0.5.9 and 0.5.10 forget the ids, run as they stand in the module, before and after."""
    site = installed(release(version), tmp_path / version)
    assert captured_with(site) == [(), ()]
    apply(site, model.series(["eagle3-graph-layers"]))
    assert captured_with(site) == [((3, 30, 57),), ((3, 30, 57),)]


def captured_with(site: Site) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []

    class Model:
        def set_eagle3_layers_to_capture(self, *ids: object) -> None:
            calls.append(ids)

    class Algorithm:
        def is_eagle3(self) -> bool:
            return True

    class ModelRunner:
        model = Model()
        spec_algorithm = Algorithm()
        eagle_use_aux_hidden_state = True
        eagle_aux_hidden_state_layer_ids = (3, 30, 57)

    class GraphRunner:
        model_runner = ModelRunner()

    graph = functions(site.read(GRAPHS), "CudaGraphRunner")["__init__"]
    execute(the_condition(graph), self=GraphRunner(), model_runner=ModelRunner())
    warm_up = functions(site.read(RUNNER), "ModelRunner")["_dummy_run"]
    execute(the_condition(warm_up), self=ModelRunner())
    return calls


def the_condition(function: ast.FunctionDef) -> ast.If:
    found = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.If) and "set_eagle3_layers_to_capture" in ast.unparse(node.body[0])
    ]
    assert len(found) == 1
    return found[0]
