"""Probes: small programs that a target's own interpreter runs, each in a process of its own."""
