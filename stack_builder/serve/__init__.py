"""Launching a server, watching it, and proving what is active in it."""
