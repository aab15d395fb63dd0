"""Bases: the layers below the wheels."""
