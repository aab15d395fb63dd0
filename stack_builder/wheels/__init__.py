"""Wheels: names, contents, indexes, the content-addressed store."""
