"""Who brings what; the names are those that real objects of the stacks need."""

from __future__ import annotations

import pytest

from stack_builder.elf.providers import Provider, driver_symbol, provider_of_library, python_symbol


@pytest.mark.parametrize(
    ("soname", "provider"),
    [
        ("libcuda.so.1", Provider.DRIVER),
        ("libnvidia-ml.so.1", Provider.DRIVER),
        ("libcudart.so.13", Provider.WHEEL),  # the runtime, not the driver
        ("libpython3.11.so.1.0", Provider.INTERPRETER),
        ("libpython3.so", Provider.INTERPRETER),
        ("libstdc++.so.6", Provider.BASE),
        ("libnvrtc.so.13", Provider.WHEEL),
    ],
)
def test_libraries(soname: str, provider: Provider) -> None:
    assert provider_of_library(soname) is provider


@pytest.mark.parametrize(
    ("name", "absent", "answer"),
    [
        ("cuInit", ["libcuda.so.1"], True),
        ("cudaMalloc", ["libcuda.so.1"], False),
        ("cublasCreate_v2", ["libcuda.so.1"], False),
        ("cuInit", [], False),
        ("nvmlInit_v2", ["libcuda.so.1"], False),
        ("nvmlInit_v2", ["libcuda.so.1", "libnvidia-ml.so.1"], True),
    ],
)
def test_symbols_of_the_driver(name: str, absent: list[str], answer: bool) -> None:
    assert driver_symbol(name, absent) is answer


def test_symbols_of_the_interpreter() -> None:
    assert python_symbol("PyModule_Create2")
    assert python_symbol("_Py_Dealloc")
    assert not python_symbol("_ZN8pybind116detailE")
