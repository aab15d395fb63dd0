"""Whether the server's port is free."""

from __future__ import annotations

from stack_builder.diagnose import catalogue
from stack_builder.serve.preflight.launch import Launch, Said
from stack_builder.serve.processes import listener, owned_by


def check(launch: Launch) -> Said:
    """Look who listens on the port. A start looks again, and ends where somebody does."""
    port = launch.plan.request.port
    owner = listener(port)
    if owner is None:
        return Said()
    return Said((catalogue.finding("RUN015", detail=f"port {port} belongs to {owned_by(owner)}", object="--port"),))
