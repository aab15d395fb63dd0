"""An error text or a whole server log -> ranked causes, evidence with line numbers, fix, what to look at next."""

from stack_builder.diagnose.explain.confirm import confirm
from stack_builder.diagnose.explain.telling import explain

__all__ = ["confirm", "explain"]
