"""``stackb schema report|lock|receipt|bench|probe``: JSON schemas of what stackb writes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from stack_builder import jsontext, resources
from stack_builder.cli.output import write


class Document(StrEnum):
    """What has a schema."""

    REPORT = "report"
    LOCK = "lock"
    RECEIPT = "receipt"
    BENCH = "bench"
    PROBE = "probe"


def command(document: Annotated[Document, typer.Argument(help="Which document.")]) -> None:
    """Print the JSON schema of a document that stackb writes."""
    match document:
        case Document.REPORT:
            write(_report())
        case Document.PROBE:
            write(_probe())
        case _:
            write(_of_class(document))


def _report() -> str:
    return (resources.checks() / "schemas" / "report-1.json").read_text(encoding="utf-8")


def _of_class(document: Document) -> str:
    """The schema of the very class that reads the document."""
    from pydantic import TypeAdapter

    from stack_builder.bench import results
    from stack_builder.stack import lock, receipt

    version, adapter = {
        Document.LOCK: (lock.SCHEMA_VERSION, TypeAdapter[object](lock.Lock)),
        Document.RECEIPT: (receipt.SCHEMA_VERSION, TypeAdapter[object](receipt.Receipt)),
        Document.BENCH: (results.SCHEMA_VERSION, TypeAdapter[object](results.Results)),
    }[document]
    schema = adapter.json_schema()
    schema["properties"] = {"schema_version": {"const": version}, **schema["properties"]}
    schema["required"] = ["schema_version", *schema["required"]]
    return _document(document, version, schema)


def _probe() -> str:
    from stack_builder.probe import result

    return _document(Document.PROBE, result.SCHEMA_VERSION, result.ADAPTER.json_schema())


def _document(document: Document, version: int, schema: dict[str, Any]) -> str:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:stackb:schema:{document.value}:{version}",
    }
    return jsontext.dumps({**head, **schema})
