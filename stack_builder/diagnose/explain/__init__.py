"""An error text or a whole server log -> ranked causes, evidence with line numbers, fix, what to look at next."""

from stack_builder.diagnose.explain.explain import explain

__all__ = ["explain"]
