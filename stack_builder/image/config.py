"""What a container of the image starts with, and what the image says of itself."""

from __future__ import annotations

from collections.abc import Sequence

from stack_builder import __version__
from stack_builder.image import oci
from stack_builder.image.base.model import Base, architecture
from stack_builder.image.contents import Place
from stack_builder.image.layout import toolkit
from stack_builder.image.oci import ImageConfig
from stack_builder.image.settings import LAYOUT_VERSION, ImageSettings
from stack_builder.image.subject import Subject

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def config_of(
    subject: Subject, base: Base, place: Place, settings: ImageSettings, folders: Sequence[str], bytecode: bool
) -> ImageConfig:
    """Make the configuration.

    Args:
        subject: what the image is made of.
        base: its variables stay, those of the stack win.
        place: of the environment.
        settings: ``docker/image.toml``.
        folders: directories of libraries, for an image without a linker cache.
        bytecode: whether the image holds bytecode.
    """
    prefix, home = f"/{place.prefix}", f"/{toolkit(subject, place, settings)}"
    variables = {
        **base.environment,
        **settings.environment,
        "PATH": f"{prefix}/bin:{home}/bin:{base.environment.get('PATH', _SYSTEM_PATH)}",
        "VIRTUAL_ENV": prefix,
        "CUDA_HOME": home,
    }
    if base.rootfs is None:  # no ldconfig, so no linker cache: the next best
        variables["LD_LIBRARY_PATH"] = ":".join(f"/{folder}" for folder in folders)
    return ImageConfig(
        architecture=architecture(subject.platform),
        environment=variables,
        command=("/bin/bash",),
        labels=_labels(subject, base, bytecode),
    )


def _labels(subject: Subject, base: Base, bytecode: bool) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": subject.stack,
        "org.opencontainers.image.description": subject.description,
        "org.opencontainers.image.created": oci.CREATED,
        "org.opencontainers.image.base.name": base.record.source,
        "dev.stackb.base": base.record.identity,
        "dev.stackb.bytecode": str(bytecode).lower(),
        "dev.stackb.cuda": subject.cuda,
        "dev.stackb.gpu": subject.gpu,
        "dev.stackb.layout": str(LAYOUT_VERSION),
        "dev.stackb.lock": subject.lock_sha256,
        "dev.stackb.patches": " ".join(f"{patch.id}={patch.sha256}" for patch in subject.patches),
        "dev.stackb.python": subject.python,
        "dev.stackb.version": __version__,
    }
