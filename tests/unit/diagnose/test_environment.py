"""Environments read from files, against what the interpreter and importlib.metadata say of the same files."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

from stack_builder.diagnose.environment import distributions, facts, listing, python, torch
from stack_builder.diagnose.subjects.local import prefix_of
from stack_builder.errors import UsageError
from stack_builder.trees.directory import DirectoryTree

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
TREE = DirectoryTree()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    return tmp_path / "env"


def site_of(prefix: Path) -> Path:
    return prefix / f"lib/python{VERSION}/site-packages"


def dist_info(site: Path, name: str, version: str, record: str = "", extra: str = "") -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{extra}\nDescription: Name: other\n"
    (folder / "METADATA").write_text(text)
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp310-abi3-manylinux2014_x86_64\n")
    (folder / "RECORD").write_text(record)


def test_sys_path_is_what_the_interpreter_says(environment: Path) -> None:
    (environment / "linked").mkdir()
    (site_of(environment) / "more.pth").write_text(f"# comment\nimport os\n\n{environment / 'linked'}\nnowhere\n")
    found = python.find_python(TREE, str(environment), {}, "x")
    found = python.with_pth_folders(TREE, found, [str(site_of(environment) / "more.pth")])
    program = environment / "bin/python"
    code = "import sys, json; print(json.dumps([p for p in sys.path if p.startswith(sys.prefix)]))"
    said = subprocess.run([program, "-c", code], capture_output=True, text=True, check=True, env={}).stdout
    assert list(found.site) == json.loads(said)
    assert found.version == VERSION


def test_packages_behind_links_are_listed_as_python_walks_them(environment: Path, tmp_path: Path) -> None:
    site, store = site_of(environment), tmp_path / "store"
    (store / "pkg/sub").mkdir(parents=True)
    (store / "pkg/__init__.py").write_text("")
    (store / "pkg/sub/lib.so").write_bytes(b"x")
    (store / "one.py").write_text("")
    (site / "pkg").symlink_to(store / "pkg")
    (site / "one.py").symlink_to(store / "one.py")
    (site / "again").symlink_to(store / "pkg")  # each directory once
    (store / "pkg/circle").symlink_to(store / "pkg")
    (site / "above").symlink_to(environment)
    (site / "root").symlink_to("/")
    (site / "broken").symlink_to("nowhere")
    found = listing.read_listing(TREE, (str(site),))
    linked = {path.removeprefix(f"{site}/"): entry for path, entry in found.items() if "_virtualenv" not in path}
    assert {"one.py", "pkg", "again", "above", "root", "broken"} <= linked.keys()
    inside = {path for path in linked if path.endswith((".so", "__init__.py")) or "circle" in path}
    top = {path.partition("/")[0] for path in inside}
    assert len(top) == 1
    assert top <= {"pkg", "again"}
    assert {path.partition("/")[2] for path in inside} == {"__init__.py", "sub/lib.so", "circle"}
    assert all(Path(path).exists() for path in found if not path.endswith("broken"))
    [library] = [path for path in found if path.endswith(".so")]
    assert TREE.resolve(library) == str(store.resolve() / "pkg/sub/lib.so")


def test_pythonpath_comes_first(environment: Path, tmp_path: Path) -> None:
    found = python.find_python(TREE, str(environment), {"PYTHONPATH": f"{tmp_path}:relative:/nowhere"}, "x")
    assert found.site == (str(tmp_path), str(site_of(environment)))


def test_the_prefix_of_an_interpreter_is_sys_prefix(environment: Path) -> None:
    assert prefix_of(environment / "bin/python") == environment
    assert str(prefix_of(Path(sys.executable).resolve())) == sys.base_prefix


def test_the_interpreter_is_the_program_behind_the_links(environment: Path) -> None:
    found = python.find_python(TREE, str(environment), {}, "x")
    assert python.interpreter(TREE, found) == str((environment / "bin/python").resolve())


def test_a_folder_without_packages_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="site-packages"):
        python.find_python(TREE, str(tmp_path), {}, tmp_path)


def test_installed_distributions_are_importlib_metadatas() -> None:
    """The environment that runs the tests: names, versions and requirements of everything in it."""
    site = str(Path(metadata.distribution("pytest").locate_file("")).resolve())
    entries = {entry.path: entry for entry in TREE.entries(site)}
    inventory = distributions.read_inventory(TREE, (site,), entries)
    expected = {
        (d.metadata["Name"].lower().replace("_", "-").replace(".", "-"), d.version, tuple(d.requires or ()))
        for d in metadata.distributions(path=[site])
    }
    assert {(d.name, d.version, d.requires) for d in inventory.distributions} == expected
    files = metadata.distribution("pytest").files or []
    module = next(file for file in files if str(file) == "pytest/__init__.py")
    assert inventory.owners[f"{site}/{module}"] == f"pytest {metadata.version('pytest')}"


def test_files_of_two_owners_are_told_apart_by_size_and_hash(environment: Path) -> None:
    site = site_of(environment)
    (site / "p").mkdir()
    (site / "p/a.py").write_text("new")
    (site / "p/b.py").write_text("same")
    # sha256sum of the content, in RECORD's base64
    new, old = "EVB6Di9eadXfpApiob17buV-a82FxnybhDGzb_8hxDc", "AAAA"
    same = "sha256=CWcRXygTo1Qervd96dnVdz8cDAQxSwu_5P87OxxVtdU"
    dist_info(site, "one", "1", f"p/a.py,sha256={old},3\np/b.py,{same},4\ngone.py,sha256=x,1\n")
    dist_info(site, "two", "2", f'p/a.py,sha256={new},3\n"p/b.py",{same},4\n../../../bin/tool,,\n')
    entries = {entry.path: entry for entry in TREE.entries(str(site))}
    inventory = distributions.read_inventory(TREE, (str(site),), entries)
    assert inventory.shared == (facts.SharedFile(f"{site}/p/a.py", ("one 1", "two 2"), "two 2"),)
    one, two = inventory.distributions
    assert (one.absent, one.absent_count) == ((f"{site}/gone.py",), 1)
    assert two.absent_count == 0
    assert one.tags == ("cp310-abi3-manylinux2014_x86_64",)
    assert inventory.owners[str(environment / "bin/tool")] == "two 2"


def test_vendored_metadata_is_no_installation(environment: Path) -> None:
    site = site_of(environment)
    dist_info(site / "setuptools/_vendor", "wheel", "0.46.3")
    entries = {entry.path: entry for entry in TREE.entries(str(site))}
    assert distributions.read_inventory(TREE, (str(site),), entries).distributions == ()


@pytest.mark.parametrize(
    ("source", "values"),
    [
        # the forms of torch 2.9 and 2.14
        ("__version__ = '2.9.1+cu128'\ncuda: str = '12.8'\n", {"__version__": "2.9.1+cu128", "cuda": "12.8"}),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", {"cuda": None, "hip": None}),
        ("__version__ = str(1)\nif True:\n    cuda = 'x'\n", {}),
        ("def (", {}),
        ("\0", {}),
    ],
)
def test_version_py_is_read_and_never_run(source: str, values: dict[str, str | None]) -> None:
    assert torch.assigned_strings(source.encode()) == values


def test_facts_read_back_as_they_were_written() -> None:
    written = facts.Environment(
        "x86_64",
        facts.Python("3.11", "/v", ("/v/s",)),
        distributions=(facts.Distribution("a", "1", "/v/s/a-1.dist-info", ("t",), ("b",), ("/v/s/x",), 1),),
        shared_files=(facts.SharedFile("/p", ("a 1", "b 1"), None),),
        torch=facts.Torch("/v/s/torch", "2.14.1+cu130", "13.0", cxx11_abi=True),
        objects=(
            facts.Object(
                "/v/s/o.so",
                "a 1",
                ("libc.so.6",),
                (facts.MissingLibrary("l", "o", ("d",), ("m",), "f"),),
                (facts.MissingSymbol("s", "d", "v", "l", "o"),),
                ("l: v",),
                ("t",),
                (facts.Loaded("s", "p", "h"),),
            ),
        ),
        device_code=(facts.DeviceCode("/v/s/o.so", None, ("sm_90",), ("compute_90",)),),
        nvrtc=(facts.Nvrtc("libnvrtc.so.13", None),),
        kernel_loader=facts.KernelLoader("/v/s/sgl_kernel", ((90, "sm90"),), "sm100"),
        jit_caches=(facts.JitCache("/h", "0.7.2", "120a", ("13.0",), 2),),
    )
    assert facts.parse(written.to_json(), "x") == written


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 2}', '{"schema_version": 1, "new": 1}'])
def test_what_are_no_facts_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        facts.parse(text, "facts.json")
    assert "\n" not in str(caught.value)
