"""Compress standard input to standard output as gzip, with the base image's Python and zlib and without a clock."""

import gzip
import shutil
import sys

with gzip.GzipFile(filename="", mode="wb", fileobj=sys.stdout.buffer, mtime=0, compresslevel=6) as result:
    shutil.copyfileobj(sys.stdin.buffer, result, 1 << 20)
