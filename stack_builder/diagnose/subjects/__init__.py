"""Targets of doctor, looked up and opened: an environment of this machine, wheels that are not installed, an image."""
