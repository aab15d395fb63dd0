"""What an image is to be made of: read from a stack and its lock, or from the receipt of an earlier build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stack_builder.errors import UsageError
from stack_builder.patchset.model import Patch
from stack_builder.patchset.model import parse as parse_patch
from stack_builder.stack.lock import Lock
from stack_builder.stack.receipt import Receipt, WheelRecord
from stack_builder.stack.spec import StackSpec


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision of the stack file.

    Attributes:
        packages: wheels that may ship one path with different bytes.
        winner: whose bytes the image holds.
        reason: why.
    """

    packages: frozenset[str]
    winner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A stack on its way to become an image.

    Attributes:
        stack: its name.
        description: one line.
        python: ``3.11``.
        platform: ``linux_x86_64``.
        cuda: ``13.0``.
        gpu: what the image is for, such as ``sm_120``.
        lock_sha256: identity of the lock.
        wheels: sorted by name.
        rules: decide between wheels; the first that covers all of them counts.
        patches: applied to the wheels, in this order.
    """

    stack: str
    description: str
    python: str
    platform: str
    cuda: str
    gpu: str
    lock_sha256: str
    wheels: tuple[WheelRecord, ...]
    rules: tuple[Rule, ...] = ()
    patches: tuple[Patch, ...] = ()

    def rule_for(self, owners: frozenset[str]) -> Rule | None:
        """Give the rule that decides between ``owners``, or None."""
        return next((rule for rule in self.rules if owners <= rule.packages), None)

    @classmethod
    def of_stack(
        cls,
        spec: StackSpec,
        lock: Lock,
        gpu: str,
        patches: tuple[Patch, ...] = (),
        files: Mapping[str, Path] | None = None,
    ) -> Subject:
        """Read a stack.

        Args:
            spec: the stack file.
            lock: its lock.
            gpu: what the image is for.
            patches: its series.
            files: the wheels by file name; their sizes stand in for those that a lock does not know.

        Raises:
            UsageError: the lock does not pin a wheel.
        """
        wheels = []
        for artifact in lock.artifacts:
            if artifact.sha256 is None:
                fix = "run stackb lock STACK --check"
                raise UsageError("the lock gives no sha256", where=artifact.filename, fix=fix)
            path = (files or {}).get(artifact.filename)
            size = path.stat().st_size if path else artifact.size or 0
            wheels.append(
                WheelRecord(artifact.name, artifact.version, artifact.filename, artifact.sha256, size, artifact.index)
            )

        # As StackSpec.winner_for chooses: what is said for this GPU before what is said for all.
        tables = [*(each for each in spec.winner if gpu in each.gpu), *(each for each in spec.winner if not each.gpu)]
        stack = spec.stack
        return cls(
            stack=stack.name,
            description=stack.description,
            python=stack.python,
            platform=stack.platform,
            cuda=stack.cuda,
            gpu=gpu,
            lock_sha256=lock.sha256,
            wheels=tuple(wheels),
            rules=tuple(Rule(frozenset(each.packages), each.winner, each.reason) for each in tables),
            patches=patches,
        )

    @classmethod
    def of_receipt(cls, receipt: Receipt) -> Subject:
        """Read a receipt."""
        return cls(
            stack=receipt.stack,
            description=receipt.description,
            python=receipt.python,
            platform=receipt.platform,
            cuda=receipt.cuda,
            gpu=receipt.gpu,
            lock_sha256=receipt.lock_sha256,
            wheels=receipt.wheels,
            rules=tuple(Rule(frozenset(each.packages), each.winner, each.reason) for each in receipt.decisions),
            patches=tuple(parse_patch(each.text, f"receipt: {each.id}") for each in receipt.patches),
        )
