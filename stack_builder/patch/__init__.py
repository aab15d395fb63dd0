"""Patches to installed packages: data with states."""
