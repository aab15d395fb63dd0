"""GPUs as people write them."""

from __future__ import annotations

import pytest

from stack_builder.errors import UsageError
from stack_builder.stack.gpu import Gpu


@pytest.mark.parametrize("text", ["sm_120", "sm120", "120", "12.0", "SM_120", "sm_120a", " sm_120f\n"])
def test_a_gpu_is_read_in_the_forms_people_write(text: str) -> None:
    assert Gpu.parse(text) == Gpu(12, 0)
    assert str(Gpu.parse(text)) == "sm_120"


@pytest.mark.parametrize("text", ["", "blackwell", "sm_", "sm_9", "12.0.1", "sm_1200000", "sm_90b"])
def test_what_is_no_gpu_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="sm_120"):
        Gpu.parse(text)


def test_gpus_are_ordered_by_capability() -> None:
    assert sorted(map(Gpu.parse, ("12.0", "9.0", "10.3", "10.0"))) == [Gpu(9, 0), Gpu(10, 0), Gpu(10, 3), Gpu(12, 0)]
