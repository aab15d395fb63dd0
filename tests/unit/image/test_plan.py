from __future__ import annotations

from pathlib import Path

import pytest

from stack_builder.errors import IntegrityError, UsageError
from stack_builder.image.contents import Contents, InstalledFile
from stack_builder.image.plan import arrange, decide
from stack_builder.image.settings import LayerSettings
from stack_builder.image.settings import load as load_settings
from stack_builder.image.subject import Subject
from stack_builder.stack import lock as lock_file
from stack_builder.stack import spec as stack_file
from stack_builder.stack.receipt import WheelRecord

SETTINGS = LayerSettings(
    own=100, shared=4, small=10, small_shared=4, low=("nvidia-*", "torch"), high=("sgl-*", "sglang")
)


def subject(winners: str = "", gpu: str = "sm_120") -> Subject:
    text = f"""
[stack]
name = "demo"
description = "demo"
python = "3.11"
cuda = "13.0"
gpu = ["sm_120", "sm_90"]
min_driver = "580"
[requires]
one = "==1"
[base]
recipe = "debian-bookworm"
glibc = "2.36"
{winners}
"""
    lock = lock_file.Lock("demo", "3.11", "linux_x86_64", "none", None)
    return Subject.of_stack(stack_file.parse(text, "stack.toml"), lock, gpu)


def contents(name: str, **files: str) -> Contents:
    rows = tuple(InstalledFile(path, 0o644, 1, digest, path) for path, digest in sorted(files.items()))
    return Contents(name, "1", f"{name}/RECORD", rows)


def wheels(*given: Contents) -> dict[str, Contents]:
    return {each.name: each for each in given}


BOTH = 'packages = ["one", "two"]\nreason = "tested on that machine"\n'


def test_different_bytes_without_a_winner_are_refused() -> None:
    with pytest.raises(IntegrityError, match="one and two ship different bytes at /a and 1 other paths"):
        decide(wheels(contents("one", a="1", b="1"), contents("two", a="2", b="2")), subject())


def test_the_named_winner_writes_every_path() -> None:
    both = wheels(contents("one", a="1", b="1", c="1"), contents("two", a="2", b="2", d="2"))
    dropped, decisions = decide(both, subject(f'[[winner]]\nwinner = "two"\n{BOTH}'))
    assert dropped == {"one": frozenset({"a", "b"})}
    assert [(d.packages, d.winner, d.paths) for d in decisions] == [(("one", "two"), "two", 2)]


@pytest.mark.parametrize(("gpu", "loser"), [("sm_120", "two"), ("sm_90", "one")])
def test_the_winner_can_depend_on_the_gpu(gpu: str, loser: str) -> None:
    tables = f'[[winner]]\nwinner = "two"\n{BOTH}[[winner]]\nwinner = "one"\ngpu = ["sm_120"]\n{BOTH}'
    dropped, _ = decide(wheels(contents("one", a="1"), contents("two", a="2")), subject(tables, gpu))
    assert list(dropped) == [loser]


def test_a_winner_for_two_wheels_does_not_decide_for_three() -> None:
    three = wheels(contents("one", a="1"), contents("three", a="3"), contents("two", a="2"))
    with pytest.raises(IntegrityError, match="one and three and two"):
        decide(three, subject(f'[[winner]]\nwinner = "two"\n{BOTH}'))


def test_same_bytes_need_no_winner_and_stay_executable() -> None:
    plain = contents("one", a="1")
    tool = Contents("two", "1", "two/RECORD", (InstalledFile("a", 0o755, 1, "1", "a"),))
    dropped, decisions = decide(wheels(plain, tool), subject())
    assert dropped == {"one": frozenset({"a"})}
    assert decisions[0].reason == "same bytes"


def test_a_file_where_another_wheel_needs_a_directory_is_refused() -> None:
    clash = wheels(contents("one", **{"lib/x": "1"}), contents("two", **{"lib/x/y/z": "2"}))
    with pytest.raises(IntegrityError, match="a file in one and a directory in two") as caught:
        decide(clash, subject())
    assert "/lib/x" in str(caught.value)


def record(name: str, size: int) -> WheelRecord:
    return WheelRecord(name, "1", f"{name}-1-py3-none-any.whl", "0" * 64, size, "default")


def test_stable_heavy_wheels_lie_low_and_small_ones_on_top() -> None:
    names = ["scipy", "torch", "nvidia-cublas", "sgl-kernel"]
    others = [record("sglang", 50), record("pillow", 50), record("tqdm", 9)]
    layers = arrange([*others, *(record(name, 200) for name in names)], SETTINGS, 3)
    assert [[w.name for w in layer.wheels] for layer in layers] == [
        ["nvidia-cublas"], ["torch"], ["scipy"], ["pillow"], ["sgl-kernel"], ["sglang"], ["tqdm"],
    ]  # fmt: skip


def test_a_new_wheel_moves_no_other_into_another_layer() -> None:
    small = [record(f"package-{number}", 1) for number in range(30)]
    before = {w.name: {v.name for v in layer.wheels} for layer in arrange(small, SETTINGS, 3) for w in layer.wheels}
    after = {
        w.name: {v.name for v in layer.wheels}
        for layer in arrange([*small, record("one-more", 1)], SETTINGS, 3)
        for w in layer.wheels
    }
    assert {name: group - {"one-more"} for name, group in after.items() if name != "one-more"} == before


def test_more_layers_than_engines_take_are_refused() -> None:
    many = [record(f"heavy-{number}", 200) for number in range(123)]
    assert len(arrange(many[:122], SETTINGS, 3)) == 122
    with pytest.raises(UsageError, match="126 layers, more than the 125"):
        arrange(many, SETTINGS, 3)


@pytest.mark.parametrize("stack", ["cu130-sglang-0.5.23", "cu130-sglang-0.5.17"])
def test_the_shipped_stacks_fit(stack: str) -> None:
    folder: Path = stack_file.find(stack)
    made = Subject.of_stack(stack_file.load(folder), lock_file.load(folder), "sm_120")
    layers = arrange(made.wheels, load_settings().layers, 3)
    assert sum(len(layer.wheels) for layer in layers) == len(made.wheels)
    assert len(layers) < 60
