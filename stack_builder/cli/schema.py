"""``stackb schema report|lock``: JSON schemas of what stackb writes."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from stack_builder import resources
from stack_builder.cli.output import write


class Document(StrEnum):
    """What has a schema."""

    REPORT = "report"
    LOCK = "lock"


def command(document: Annotated[Document, typer.Argument(help="Which document.")]) -> None:
    """Print the JSON schema of a report or a lock (artifacts.json)."""
    write(_report() if document is Document.REPORT else _lock())


def _report() -> str:
    return (resources.checks() / "schemas" / "report-1.json").read_text(encoding="utf-8")


def _lock() -> str:
    """The schema of the very classes that read a lock."""
    from pydantic import TypeAdapter

    from stack_builder.stack.lock import SCHEMA_VERSION, Lock

    schema = TypeAdapter(Lock).json_schema()
    schema["properties"] = {"schema_version": {"const": SCHEMA_VERSION}, **schema["properties"]}
    schema["required"] = ["schema_version", *schema["required"]]
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:stackb:schema:lock:{SCHEMA_VERSION}",
    }
    return json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"
