"""Gates: conditions equal what Python makes of them for a capability; anchors are found by what they are."""

from __future__ import annotations

import ast

import pytest

from stack_builder.sglang.constants import UNKNOWN
from stack_builder.sglang.gates import readings, table
from stack_builder.sglang.gates.anchors import Anchor, Finder, Kind
from stack_builder.sglang.gates.capability import Conditions
from stack_builder.sglang.gates.readings import GPUS, State
from stack_builder.stack.gpu import Gpu

CONDITIONS = [
    "is_sm90_supported() or is_sm100_supported()",
    "not (is_sm90_supported() or is_sm100_supported())",
    "is_blackwell_supported() and not is_sm100_supported()",
    "get_device_capability()[0] in [9, 10]",
    "get_device_capability()[0] >= 10",
    "get_device_capability() == (12, 0)",
    "90 <= get_device_sm() < 120",
    "get_device_sm() // 10 in [8, 9, 12]",
    "is_cuda() and is_sm121()",
    "is_hip() or get_device_sm() == 120",
    "True if is_sm100_supported() else is_sm121()",
]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions_equal_python(make_tree, gpu, text):
    chip = Gpu.parse(gpu)
    space = {
        "is_sm90_supported": lambda: chip.major == 9,
        "is_sm100_supported": lambda: chip.major == 10,
        "is_blackwell_supported": lambda: chip.major in (10, 11, 12),
        "get_device_capability": lambda: (chip.major, chip.minor),
        "get_device_sm": lambda: chip.capability,
        "is_sm121": lambda: (chip.major, chip.minor) == (12, 1),
        "is_cuda": lambda: True,
        "is_hip": lambda: False,
    }
    conditions = Conditions(make_tree())
    node = ast.parse(text, mode="eval").body
    assert conditions.holds(node, "sglang/srt/choices.py", chip, {}) == eval(text, space)


def test_what_the_gpu_does_not_decide_is_unknown(make_tree):
    conditions = Conditions(make_tree())
    path, chip = "sglang/srt/choices.py", Gpu.parse("sm_120")

    def holds(text: str) -> object:
        return conditions.holds(ast.parse(text, mode="eval").body, path, chip, {})

    assert holds("batch_size > 0") is UNKNOWN
    assert holds("is_sm100_supported() and batch_size > 0") is False
    assert holds("is_blackwell_supported() and batch_size > 0") is UNKNOWN
    assert holds("is_blackwell_supported() or batch_size > 0") is True


GATED = """
_is_sm100 = is_sm100_supported()
TABLE = {9: 1, 10: 2}

def gate(n):
    return _is_sm100 and n > 0

def staged():
    sm = get_device_sm()
    if sm < 90:
        return False
    if sm == 120:
        return False
    if unknowable():
        return False
    return True

def start(backend):
    if backend == "x":
        if not is_sm100_supported():
            raise ValueError("wants SM100")
    elif is_sm90_supported():
        pass
    else:
        raise ValueError("no Hopper")

def kernel(x):
    major, minor = get_device_capability()
    assert major in (9, 10), "Unsupported"
    assert x > 0, "Undecided"
"""


@pytest.mark.parametrize(
    ("kind", "text", "symbol", "given", "expected"),
    [
        (Kind.RETURNS, "gate", "gate", {}, [False, True, False, False]),
        (Kind.RETURNS, "staged", "staged", {}, [True, True, False, True]),
        (Kind.KEYS, "TABLE", "", {}, [True, True, False, False]),
        (Kind.RAISES, "wants SM100", "", {}, [True, False, True, True]),
        (Kind.RAISES, "no Hopper", "start", {}, [False, True, True, True]),
        (Kind.RAISES, "no Hopper", "start", {"backend == 'x'": True}, [False] * 4),
        (Kind.ASSERTS, "Unsupported", "", {}, [False, False, True, True]),
        (Kind.ASSERTS, "Undecided", "", {}, [None] * 4),
        (Kind.BRANCH, "sm == 120", "staged", {}, [False, False, True, False]),
        (Kind.PRESENT, "unknowable()", "staged", {}, [True] * 4),
    ],
)
def test_anchors(make_tree, kind, text, symbol, given, expected):
    finder = Finder(Conditions(make_tree({"sglang/srt/gated.py": GATED})))
    anchor = Anchor(kind, ("srt/absent.py", "srt/gated.py"), text, symbol, given)
    assert [finder.read(anchor, Gpu.parse(gpu))[0] for gpu in GPUS] == expected


def test_an_anchor_that_moved_away_is_not_found(make_tree):
    finder = Finder(Conditions(make_tree({"sglang/srt/gated.py": GATED})))
    anchor = Anchor(Kind.RAISES, ("srt/gated.py",), "wants SM90")
    assert finder.read(anchor, Gpu.parse("sm_120")) is None


RECORDED = ["0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.16", "0.5.17", "0.5.20", "0.5.23"]


def test_every_reading_is_used_by_some_recorded_release():
    """A step that decides nothing in any release is a step that nobody has seen work."""
    decided: dict[str, set[int]] = {}
    for feature in readings.load():
        for version in RECORDED:
            for gate in table.recorded(version).gates[feature].values():
                decided.setdefault(feature, set()).add(gate.step)
    unused = {
        f"{name} step {step}"
        for name, feature in readings.load().items()
        for step in range(1, len(feature.reading) + 1)
        if step not in decided[name]
    }
    assert unused <= {
        "flashinfer-allreduce-fusion step 4",  # the refusal of step 1 stands before it in every release so far
        "pcie-ipc-all-reduce step 1",  # 0.5.21, which is not recorded
    }


def test_records_state_what_the_founding_report_met():
    def state(version: str, feature: str, gpu: str = "sm_120") -> State:
        return table.recorded(version).gate(feature, gpu).state

    fusion = "flashinfer-allreduce-fusion"
    assert [state(v, fusion) for v in ("0.5.9", "0.5.13", "0.5.14", "0.5.23")] == [
        State.SILENTLY_OFF,
        State.WARNS_OFF,
        State.REFUSES,
        State.REFUSES,
    ]
    assert state("0.5.9", fusion, "sm_90") is State.ACTIVE
    assert state("0.5.13", "torch-symmetric-memory") is State.REFUSES
    assert state("0.5.14", "torch-symmetric-memory") is State.WARNS_OFF
    assert state("0.5.13", "deep-gemm") is State.ACTIVE
    assert state("0.5.13", "deep-gemm", "sm_121") is State.CRASHES_LATE
    assert state("0.5.20", "pcie-ipc-all-reduce") is State.ABSENT
    assert state("0.5.23", "pcie-ipc-all-reduce") is State.ACTIVE
    assert table.recorded("9.9.9") is None


def test_advice_names_only_releases_that_have_it():
    new = table.recorded("0.5.23").instead("flashinfer-allreduce-fusion", "sm_120")
    old = table.recorded("0.5.9").instead("flashinfer-allreduce-fusion", "sm_120")
    assert any("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1" in text and "newer" not in text for text in new)
    assert all("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1" not in text or "newer" in text for text in old)
