"""stackb: reproducible CUDA 13 serving stacks."""

__version__ = "0.1.0"
