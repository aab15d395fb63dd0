"""What is read of SGLang against SGLang itself, run inside built images. No GPU is needed.

Opt-in: ``STACKB_TEST_IMAGES`` names images that a Docker engine holds, such as those that these two write.

    stackb build cu130-sglang-0.5.17 --output docker:stackb-0.5.17
    stackb build cu130-sglang-0.5.23 --output docker:stackb-0.5.23
    STACKB_TEST_IMAGES="stackb-0.5.17 stackb-0.5.23" pytest tests/real/test_sglang_images.py

The oracles run in the image's own Python with its own torch, sgl_kernel and the rest: nothing of Python is replaced.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from stack_builder.sglang import options, source
from stack_builder.sglang.contract import contract as contracts
from stack_builder.sglang.source import SourceTree
from tests.real.parsers import differences

IMAGES = os.environ.get("STACKB_TEST_IMAGES", "").split()
FOLDER = Path(__file__).parent
pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not IMAGES, reason="STACKB_TEST_IMAGES names no images"),
]

# sgl_kernel is linked against the driver's libcuda.so.1, which no image holds. This one answers every call with
# CUDA_ERROR_NO_DEVICE (100), as a driver without a GPU does; the image's own compiler makes it.
WITH_A_DRIVER = """
set -e
mkdir /tmp/driver
nm -D --undefined-only "$SITE"/sgl_kernel/*.so "$SITE"/sgl_kernel/*/*.so | awk '$2 ~ /^cu[A-Z]/ {print $2}' | sort -u |
    sed 's/@.*//; s/.*/int &(void) {return 100;}/' | gcc -x c -shared -fPIC -Wl,-soname,libcuda.so.1 \
    -o /tmp/driver/libcuda.so.1 -
LD_LIBRARY_PATH="/tmp/driver:$LD_LIBRARY_PATH" exec python -W ignore "$@"
"""


def site(image: str) -> str:
    said = subprocess.run(
        [
            "docker",
            "run",
            "--rm",
            "--network",
            "none",
            image,
            "python",
            "-c",
            "import site; print(*site.getsitepackages())",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return said.stdout.split()[0]


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """The sources of SGLang as the image has them, copied out of a container that never runs."""

    @cache
    def get(image: str) -> SourceTree:
        folder = tmp_path_factory.mktemp("site")
        made = subprocess.run(["docker", "create", image], check=True, capture_output=True, text=True).stdout.strip()
        try:
            subprocess.run(["docker", "cp", "-q", f"{made}:{site(image)}/sglang", folder], check=True)
        finally:
            subprocess.run(["docker", "rm", made], check=True, capture_output=True)
        return source.from_directory(folder)

    return get


def ask(image: str, oracle: str) -> tuple[list, str]:
    """Run an oracle in the image; give what it prints and what it says on stderr."""
    mounted = ["--volume", f"{FOLDER}:/oracle:ro", "--env", f"SITE={site(image)}"]
    command = ["docker", "run", "--rm", "--network", "none", *mounted, image, "sh", "-c", WITH_A_DRIVER, "sh"]
    done = subprocess.run([*command, f"/oracle/{oracle}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("image", IMAGES)
def test_options_equal_the_parser_of_the_image(image: str, tree) -> None:
    real, _ = ask(image, "real_parser.py")
    assert len(real) > 300
    assert differences(options.read(tree(image)), real) == []


@pytest.mark.parametrize("image", IMAGES)
def test_architectures_equal_the_registry_of_the_image(image: str, tree) -> None:
    """What the registry leaves out are models whose modules it could not import without a GPU, as it says itself."""
    real, said = ask(image, "real_registry.py")
    failed = set(re.findall(r"Ignore import error when loading sglang\.srt\.models\.(\w+):", said))
    read = contracts.read(tree(image)).registry.architectures
    assert set(real) <= set(read)
    assert {Path(read[name].path).stem for name in set(read) - set(real)} <= failed
    assert len(failed) < 10
