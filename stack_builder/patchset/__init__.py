"""Patches as data, and what they make of a distribution's files: pure functions, nothing here writes.

``model`` reads a patch, ``operations`` edit source text, ``states`` judge, ``plan`` says which bytes have to be where.
``stack_builder.patch`` carries a plan out on disk; an image takes the same plan as one layer.
"""
