"""Patches in a target: where they lie, and where each of them stands. Nothing is changed."""
