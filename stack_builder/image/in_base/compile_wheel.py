"""Compile the modules of one wheel to bytecode. Runs in the base image, with its Python and the standard library alone.

Arguments: the number of the open file that holds the wheel, and of the one that takes the result, a zip. Standard
input: JSON, a list of ``[entry of the wheel, path in the image, path of the bytecode]`` in the order to compile.

A module is compiled, never executed. One that this Python cannot compile (a template, another Python's syntax) is left
out, as pip does. The order, one process per wheel and the fixed hash seed matter: what ``marshal`` writes depends on
which names the process has met before.
"""

import importlib.util
import json
import marshal
import os
import resource
import sys
import warnings
import zipfile

UNCHECKED_HASH = 1  # PEP 552: bit 0, hash-based; bit 1 unset, the source is not compared at import
MEMORY = 8 << 30


def bytecode(source: bytes, path: str) -> bytes | None:
    """Give the content of a ``.pyc`` file (PEP 552), or None where ``source`` does not compile."""
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None
    flags = UNCHECKED_HASH.to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + marshal.dumps(code)


def main() -> None:
    """Read the job, write the zip."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    job = json.load(sys.stdin)
    with (
        os.fdopen(int(sys.argv[1]), "rb") as source,
        os.fdopen(int(sys.argv[2]), "wb") as result,
        zipfile.ZipFile(source) as wheel,
        zipfile.ZipFile(result, "w") as pack,
    ):
        for entry, path, target in job:
            data = bytecode(wheel.read(entry), path)
            if data is not None:
                member = zipfile.ZipInfo(target)
                member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                pack.writestr(member, data)


main()
