"""Provenance of an image: an in-toto statement with SLSA's provenance predicate, version 1, made from the receipt.

Sources: in-toto attestation framework, ``spec/v1/statement.md`` and ``resource_descriptor.md``; SLSA,
``provenance/v1``. Whoever builds on their own machine vouches for it themselves: that is SLSA build level 1.
"""

from __future__ import annotations

import json

from stack_builder.stack.receipt import Receipt
from stack_builder.supply.sbom import debian_purl, distro_of, wheel_purl

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:x-stackb:image:1"


def render(receipt: Receipt) -> str:
    """Write the statement about an image; equal receipts give equal bytes."""
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": receipt.reference, "digest": _digest(receipt.manifest_digest)}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"buildDefinition": _definition(receipt), "runDetails": _details(receipt)},
    }
    return json.dumps(statement, indent=1, sort_keys=True) + "\n"


def _definition(receipt: Receipt) -> dict[str, object]:
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "stack": receipt.stack,
            "gpu": receipt.gpu,
            "base": receipt.base.source,
            "bytecode": receipt.bytecode,
        },
        "internalParameters": {
            "layout": receipt.layout,
            "python": receipt.python,
            "platform": receipt.platform,
            "cuda": receipt.cuda,
            "lockSha256": receipt.lock_sha256,
        },
        "resolvedDependencies": [*_wheels(receipt), *_patches(receipt), *_base(receipt)],
    }


def _details(receipt: Receipt) -> dict[str, object]:
    tool = f"pkg:pypi/stackb@{receipt.tool}"
    layers = [{"name": layer.title, "digest": _digest(layer.digest)} for layer in receipt.layers]
    config = {"name": "image configuration", "digest": _digest(receipt.config_digest)}
    return {"builder": {"id": tool, "version": {"stackb": receipt.tool}}, "byproducts": [config, *layers]}


def _wheels(receipt: Receipt) -> list[dict[str, object]]:
    return [
        {"name": wheel.filename, "uri": str(wheel_purl(wheel.name, wheel.version)), "digest": {"sha256": wheel.sha256}}
        for wheel in receipt.wheels
    ]


def _patches(receipt: Receipt) -> list[dict[str, object]]:
    """Patches of the wheels; their text stands in the receipt."""
    return [{"name": f"patch {patch.id}", "digest": {"sha256": patch.sha256}} for patch in receipt.patches]


def _base(receipt: Receipt) -> list[dict[str, object]]:
    base = receipt.base
    if not base.packages:
        return [{"name": base.source, "digest": _digest(base.identity)}]
    distro = distro_of(base.packages)
    return [
        {
            "name": package.path.rpartition("/")[2],
            "uri": str(debian_purl(package, distro)),
            "digest": {"sha256": package.sha256},
        }
        for package in base.packages
    ]


def _digest(value: str) -> dict[str, str]:
    return {"sha256": value.removeprefix("sha256:")}
