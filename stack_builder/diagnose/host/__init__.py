"""The host: driver, GPUs, compilers, libraries and settings that decide whether a stack can run here.

``collect_host`` gathers facts and never judges; ``judge_host`` judges facts and never collects.
"""

from stack_builder.diagnose.host.collect import collect_host
from stack_builder.diagnose.host.facts import Compiler, Device, Driver, DriverLibrary, HostFacts
from stack_builder.diagnose.host.judge import HostNeed, judge_host

__all__ = [
    "Compiler",
    "Device",
    "Driver",
    "DriverLibrary",
    "HostFacts",
    "HostNeed",
    "collect_host",
    "judge_host",
]
