"""Patches carried out on installed files: two verbs, :func:`apply` and :func:`revert`, each all or nothing."""

from __future__ import annotations

from stack_builder.patch.verbs import apply, revert

__all__ = ["apply", "revert"]
