"""Model classes of a release, linked: registered architectures, inheritance, inner models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stack_builder.sglang.contract.models import FOLDER, ModelClass, ModelFile

MAX_BASES = 64  # classes in one line of inheritance


@dataclass(frozen=True, slots=True)
class Found:
    """Where an attribute of a model comes from."""

    owner: ModelClass
    is_method: bool


class Registry:
    """All model classes of a release.

    Attributes:
        files: that it was made from.
        architectures: name in ``config.json`` -> class, for those that ``EntryClass`` registers.
    """

    def __init__(self, files: Iterable[ModelFile]) -> None:
        self.files = tuple(files)
        self._files = {file.path: file for file in self.files}
        self.architectures: dict[str, ModelClass] = {}
        for file in self._files.values():
            if file.path.count("/") == FOLDER.count("/") + 1:  # models/registry.py looks into no sub-package
                for name in file.registered:
                    cls = self.resolve(file.path, name)
                    if cls is not None:
                        self.architectures[cls.name] = cls

    def resolve(self, path: str, name: str) -> ModelClass | None:
        """The class that ``name`` means in a file; None where it is defined outside the models."""
        for _ in range(MAX_BASES):
            file = self._files.get(path)
            if file is None:
                return None
            if name in file.classes:
                return file.classes[name]
            if name in file.aliases and file.aliases[name] != name:
                name = file.aliases[name]
            elif name in file.imports:
                module, name = file.imports[name]
                path = module.replace(".", "/") + ".py"
                if path not in self._files:
                    path = module.replace(".", "/") + "/__init__.py"
            else:
                return None
        return None

    def lineage(self, cls: ModelClass) -> Iterator[ModelClass]:
        """The class and its bases among the models, nearest first."""
        queue = [cls]
        seen: set[tuple[str, str]] = set()
        while queue and len(seen) < MAX_BASES:
            current = queue.pop(0)
            if (current.path, current.name) in seen:
                continue
            seen.add((current.path, current.name))
            yield current
            bases = (self.resolve(current.path, base.split(".")[-1]) for base in current.bases)
            queue.extend(base for base in bases if base is not None)

    def find(self, cls: ModelClass, attribute: str) -> Found | None:
        """Where a model has an attribute from, or None."""
        for owner in self.lineage(cls):
            if attribute in owner.methods:
                return Found(owner, is_method=True)
            if attribute in owner.attributes:
                return Found(owner, is_method=False)
        return None

    def is_dynamic(self, cls: ModelClass) -> bool:
        """Whether the model may answer to names that no definition shows."""
        return any(owner.dynamic for owner in self.lineage(cls))

    def inner_models(self, cls: ModelClass) -> dict[str, tuple[ModelClass, ...]]:
        """Attributes of a model that hold another model class, such as ``language_model``."""
        found: dict[str, tuple[ModelClass, ...]] = {}
        for owner in self.lineage(cls):
            for attribute, names in owner.inner.items():
                classes = (self.resolve(owner.path, name) for name in names)
                models = tuple(c for c in classes if c is not None)
                if models and attribute not in found:
                    found[attribute] = models
        return found
