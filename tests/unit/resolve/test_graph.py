"""Who requires whom: markers, extras, cycles."""

from stack_builder.resolve import graph
from stack_builder.resolve.target import Target

TARGET = Target("3.11", "x86_64", "2.36")


def reached(roots: list[str], lines: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    built = graph.build(roots, lines, TARGET)
    return {name: built.via(name) for name in built.requirers}


def test_markers_decide_on_the_target_not_on_this_machine() -> None:
    lines = {
        "a": [
            "windows; sys_platform == 'win32'",
            "arm; platform_machine == 'aarch64'",
            "linux; platform_system == 'Linux'",
            "old; python_version < '3.11'",
            "exact; python_version == '3.11'",
        ]
    }
    assert reached(["a"], lines) == {"a": (), "linux": ("a",), "exact": ("a",)}


def test_extras_are_followed_only_where_they_are_asked_for() -> None:
    # the shape of torch -> cuda-toolkit[cudart,nvrtc] -> nvidia-*
    lines = {
        "torch": ["cuda-toolkit[cudart,nvrtc]==13.0.3", "optree; extra == 'optree'"],
        "cuda-toolkit": [
            "nvidia-cuda-runtime==13.0.96.*; sys_platform == 'linux' and extra == 'cudart'",
            "nvidia-cuda-nvrtc; extra == 'nvrtc'",
            "nvidia-cublas; extra == 'cublas'",
            "plain",
        ],
    }
    assert reached(["torch"], lines) == {
        "torch": (),
        "cuda-toolkit": ("torch",),
        "nvidia-cuda-runtime": ("cuda-toolkit",),
        "nvidia-cuda-nvrtc": ("cuda-toolkit",),
        "plain": ("cuda-toolkit",),
    }


def test_an_extra_can_ask_for_another_extra_of_the_same_package() -> None:
    lines = {"a": ["a[b]; extra == 'all'", "c; extra == 'b'"], "root": ["A[All]"]}
    assert reached(["root"], lines) == {"root": (), "a": ("root",), "c": ("a",)}


def test_two_lines_about_one_package_both_count() -> None:
    built = graph.build(["a"], {"a": ["b>=1", "b<2; python_version > '3'", "b==9; python_version < '3'"]}, TARGET)
    assert [str(line.specifier) for line in built.requirers["b"]["a"]] == [">=1", "<2"]


def test_cycles_end_and_unreached_packages_stay_out() -> None:
    assert reached(["a"], {"a": ["b"], "b": ["a"], "island": ["a"]}) == {"a": ("b",), "b": ("a",)}


def test_lines_that_nobody_can_read_are_named() -> None:
    built = graph.build(["a"], {"a": ["b", "torch >= banana"]}, TARGET)
    assert built.malformed == {"a": ["torch >= banana"]}
    assert built.via("b") == ("a",)


def test_extras_of_a_root_are_walked_and_those_that_bring_nothing_are_named() -> None:
    lines = {"dsl": ["base", "cu13; extra == 'cu13'", "cu12; extra == 'cu12'"]}  # the shape of nvidia-cutlass-dsl
    built = graph.build(["dsl"], lines, TARGET, {"dsl": ["cu13", "cu14"]})
    assert built.requirers.keys() == {"dsl", "base", "cu13"}
    assert built.idle_extras == [("dsl", "cu14")]
