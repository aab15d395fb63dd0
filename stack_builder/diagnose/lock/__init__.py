"""The LOCK rules: is a lock whole, does it answer to its stack file, do its wheels fit together?"""

from stack_builder.diagnose.lock.facts import LockFacts
from stack_builder.diagnose.lock.judge import judge
from stack_builder.diagnose.lock.verbs import check_lock, make_lock

__all__ = ["LockFacts", "check_lock", "judge", "make_lock"]
