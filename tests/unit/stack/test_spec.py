"""stack.toml: what is accepted, what is refused, and that a refusal names the key."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack_builder import resources
from stack_builder.errors import UsageError
from stack_builder.stack import spec

GOOD = """
[stack]
name = "demo"
description = "a stack"
python = "3.11"
cuda = "13.0"
gpu = ["sm_120", "sm_90"]
min_driver = "580"

[requires]
SGLang = "==0.5.23"

[base]
recipe = "debian-bookworm"
glibc = "2.36"
"""
WINNER = '[[winner]]\npackages = ["a", "b"]\nreason = "long enough"\n'


def refused(text: str) -> str:
    with pytest.raises(UsageError) as error:
        spec.parse(text, "stack.toml")
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize("folder", sorted(path.parent for path in resources.lockfiles().glob("*/stack.toml")))
def test_the_repositorys_stacks(folder: Path) -> None:
    stack = spec.load(folder)
    assert stack.stack.name == folder.name
    assert stack.stack.cuda == "13.0"
    assert all(override.reason and override.expires for override in stack.override)


def test_the_default_is_the_newest() -> None:
    assert spec.available() == ["cu130-sglang-0.5.23", "cu130-sglang-0.5.17", "cu130-sglang-0.5.9"]
    assert spec.find(None).name == spec.DEFAULT_STACK == spec.available()[0]
    assert spec.find("stack:cu130-sglang-0.5.9").name == "cu130-sglang-0.5.9"


def test_names_are_normalised() -> None:
    assert dict(spec.parse(GOOD, "x").requires) == {"sglang": "==0.5.23"}


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "demo"', 'name = "demo"\nnmae = 1', "stack.nmae"),
        ('name = "demo"', 'name = "../demo"', "stack.name"),
        ('python = "3.11"', 'python = "3.11.2"', "stack.python"),
        ('cuda = "13.0"', 'cuda = "cu130"', "stack.cuda"),
        ('gpu = ["sm_120", "sm_90"]', "gpu = []", "stack.gpu"),
        ('"sm_90"', '"H100"', "stack.gpu"),
        ('SGLang = "==0.5.23"', 'SGLang = "0.5.23"', "is not a version specifier"),
        ('SGLang = "==0.5.23"', 'SGLang = "*"', "for any version write '>=0'"),
        ('SGLang = "==0.5.23"', "", "requires"),
        ('SGLang = "==0.5.23"', '"SGLang[all, http2]" = "==0.5.23"', 'as SGLang = ["all", "http2"]'),
        ("[base]", '[extras]\ntorch = ["opt"]\n[base]', "[extras] names 'torch', which [requires] does not"),
        ("[base]", "[extras]\nsglang = []\n[base]", "extras.sglang"),
        ('glibc = "2.36"', "", "base.glibc"),
        ('recipe = "debian-bookworm"', "", "give either recipe or image"),
        ('recipe = "debian-bookworm"', 'image = "nvidia/cuda:13.0.1-devel-ubuntu24.04"', "base.image"),
        ('glibc = "2.36"', 'glibc = "2.36"\n[surprise]', "surprise"),
        ("[stack]", "[stack", "not TOML"),
        ("[base]", '[[index]]\nname = "i"\nurl = "http://x/simple"\npackages = ["a"]\n[base]', "index.0.url"),
        (
            "[base]",
            '[[override]]\npackage = "a"\nversion = "==1"\nreason = "no"\nexpires = 2027-01-01\n[base]',
            "reason",
        ),
        ("[base]", '[[override]]\npackage = "a"\nversion = "==1"\nreason = "long enough"\n[base]', "expires"),
        ("[base]", f'{WINNER}winner = "c"\n[base]', "is not one of packages"),
        ("[base]", '[[accept]]\nfilename = "a.whl"\nsha256 = "62d41f63"\nreason = "long enough"\n[base]', "sha256"),
    ],
)
def test_what_is_refused_and_where(old: str, new: str, key: str) -> None:
    assert old in GOOD
    assert key in refused(GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[requires]", "[require]", "require: unknown key, did you mean 'requires'?"),
        ("description =", "descripton =", "stack.descripton: unknown key, did you mean 'description'?"),
        ("name =", "zzz = 1\nname =", "stack.zzz: unknown key. "),
        ('gpu = ["sm_120", "sm_90"]', 'gpu = "sm_120"', "stack.gpu: Input should be an array"),
    ],
)
def test_a_misspelt_key_is_named_before_what_is_missing_by_it(old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert refused(GOOD.replace(old, new, 1)).startswith(f"stack.toml: {said}")


def test_extras_stand_behind_their_roots() -> None:
    stack = spec.parse(GOOD.replace("[base]", '[extras]\nsglang = ["All", "tracing"]\n[base]'), "x")
    assert stack.roots() == ["sglang[all,tracing]==0.5.23"]


def test_one_package_has_one_index() -> None:
    index = '[[index]]\nname = "{}"\nurl = "https://x/simple"\npackages = ["Torch"]\n'
    assert "'torch' is listed by index 'one' and 'two'" in refused(GOOD + index.format("one") + index.format("two"))


def test_who_wins_where() -> None:
    everywhere = f'{WINNER}winner = "a"\n'
    hopper = f'{WINNER}winner = "b"\ngpu = ["sm_90"]\n'
    stack = spec.parse(GOOD + everywhere + hopper, "x")
    both = frozenset({"a", "b"})
    assert [stack.winner_for(both, gpu).winner for gpu in ("sm_120", "sm_90")] == ["a", "b"]
    assert stack.winner_for(frozenset({"a", "c"}), "sm_120") is None
    assert spec.parse(GOOD + hopper, "x").winner_for(both, "sm_120") is None


def test_files_that_are_no_stack(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no stack 'nothing'. Choose one of cu130-sglang-0\.5\.23"):
        spec.find("nothing")
    (tmp_path / "stack.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        spec.load(tmp_path)
    (tmp_path / "stack.toml").write_bytes(b"#" * (spec.MAX_STACK_FILE + 1))
    with pytest.raises(UsageError, match="larger than"):
        spec.load(tmp_path)


@settings(max_examples=50)
@given(st.text(max_size=200))
def test_any_text_is_a_stack_or_one_line(text: str) -> None:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assert "not TOML" in refused(text)
    else:
        refused(text)


def test_a_command_names_a_stack_of_ones_own_by_its_folder(tmp_path: Path) -> None:
    assert spec.argument(spec.find(None)) == "cu130-sglang-0.5.23"
    assert spec.argument(tmp_path / "g" / "s") == f"{tmp_path}/g/s"
    assert spec.argument(Path("my stacks/s")) == "'my stacks/s'"
