"""Who needs what of the cache: locks of stacks that are still there, and receipts of images."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from stack_builder import resources
from stack_builder.cache import stacks
from stack_builder.errors import StackbError
from stack_builder.image.base.debian import folder_name
from stack_builder.stack import lock as locks
from stack_builder.stack import receipt as receipts
from stack_builder.stack.lock import Lock
from stack_builder.stack.receipt import Receipt

Needs = dict[tuple[str, str], set[str]]
"""Who needs an item, by kind and key."""


def collect(since: float) -> Needs:
    """Find out who needs what.

    Args:
        since: an image that was built before, from a lock that no longer is one, needs nothing any more; seconds
            since the epoch.

    Raises:
        OSError: a lock or receipt cannot be read, so that it is not known what it needs.
    """
    needs: Needs = defaultdict(set)
    known = set()
    for place in stacks.known():
        with suppress(StackbError, FileNotFoundError):
            lock = locks.load(place)
            known.add(lock.sha256)
            _add_lock(needs, lock, place)
    for path in (resources.cache() / "receipts").glob("*.json"):
        with suppress(StackbError, FileNotFoundError):
            receipt = receipts.load(path)
            if receipt.lock_sha256 in known or path.stat().st_mtime >= since:
                _add_receipt(needs, receipt, path)
    return needs


def _add_lock(needs: Needs, lock: Lock, place: Path) -> None:
    for artifact in lock.artifacts:
        if artifact.sha256:
            needs["wheels", artifact.sha256].add(place.name)
    needs["jit", lock.stack].add(place.name)
    needs["stacks", stacks.note(place).name].add(place.name)


def _add_receipt(needs: Needs, receipt: Receipt, path: Path) -> None:
    image = f"image {receipt.manifest_digest.removeprefix('sha256:')[:12]}"
    wanted = [
        ("receipts", path.stem),
        ("base", receipt.base.identity.removeprefix("sha256:")),
        ("base", folder_name(receipt.base.identity)),
    ]
    wanted += [("wheels", wheel.sha256) for wheel in receipt.wheels]
    wanted += [("debs", package.sha256) for package in receipt.base.packages]
    digests = (receipt.manifest_digest, receipt.config_digest, *(layer.digest for layer in receipt.layers))
    wanted += [("oci", digest.removeprefix("sha256:")) for digest in digests]
    for key in wanted:
        needs[key].add(image)
