"""What resolvers say when there is no solution, in one line. Texts as uv 0.13.9 and pip 26.3 wrote them."""

from stack_builder.resolve import piptools, process, uv

UV_TORCH = """error: No solution found when resolving dependencies
  cause: Because sglang==0.5.9 depends on torch==2.9.1 and stack-toml depends on sglang==0.5.9, we can conclude that \
stack-toml depends on torch==2.9.1.
         And because stack-toml depends on torch==2.11.0, we can conclude that your requirements are unsatisfiable.
"""
UV_NVDISASM = """error: No solution found when resolving dependencies
  cause: Because only nvidia-cuda-nvdisasm>=13.2.51 is available and stack-toml depends on \
nvidia-cuda-nvdisasm==13.0.*, we can conclude that your requirements are unsatisfiable.
"""
PIP = """  WARNING: flashinfer-python 0.6.3 does not provide the extra 'cu13'
  ERROR: Cannot install flashinfer-python==0.6.4 and sglang==0.5.9 because these package versions have conflicting \
dependencies.
Traceback (most recent call last):
"""


def test_uvs_chain_is_cut_to_its_ends() -> None:
    assert uv.conflict(UV_TORCH) == (
        "sglang==0.5.9 depends on torch==2.9.1 and stack.toml requires sglang==0.5.9, "
        "and stack.toml requires torch==2.11.0"
    )
    assert uv.conflict(UV_NVDISASM) == (
        "only nvidia-cuda-nvdisasm>=13.2.51 is available and stack.toml requires nvidia-cuda-nvdisasm==13.0.*"
    )


def test_pips_error_names_the_packages() -> None:
    assert piptools.conflict(PIP) == "flashinfer-python==0.6.4 and sglang==0.5.9 exclude each other"
    assert piptools.conflict(
        "ERROR: Could not find a version that satisfies the requirement a==9 (from versions: 1)"
    ) == ("no wheel for a==9 (from versions: 1)")
    assert piptools.conflict("Traceback (most recent call last):") is None


def test_a_conflict_is_one_line_of_bounded_length() -> None:
    line = str(process.unsatisfiable("a\n  depends " + "on b " * 1000))
    assert "\n" not in line
    assert len(line) < 600
    assert line.startswith("stack.toml: no set of wheels satisfies it: a depends on b")
