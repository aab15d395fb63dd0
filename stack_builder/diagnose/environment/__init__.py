"""What is in a Python environment: interpreter, distributions, torch, objects. Collectors only; nothing is judged here.

Everything is read from a :class:`~stack_builder.trees.FileTree`; no interpreter is started and nothing is imported.
"""
