#!/bin/bash
# Make a virtual environment with SGLang 0.5.17 from a payload of unpacked wheels over the machine's own torch.
# Usage: prepare.sh PAYLOAD VENV, where PAYLOAD holds site.tar.xz, flash.tar.xz, xg.tar.xz, tok/, tools/ and wheels/.
set -eu
payload=$1 venv=$2
machine=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m venv --without-pip "$venv"
site=$(echo "$venv"/lib/python3.*/site-packages)
tar -C "$site" --strip-components=1 -xJf "$payload/site.tar.xz"
tar -C "$site" -xJf "$payload/flash.tar.xz"
tar -C "$site" -xJf "$payload/xg.tar.xz"
python3 -m pip install -q --no-index --no-deps --target "$site" "$payload"/wheels/*.whl
# the machine's packages stand behind them: torch, numpy and what else is missing
echo "$machine" >"$site/machine.pth"
[ ! -f "$payload/jit.tar.xz" ] || tar -C / -xJf "$payload/jit.tar.xz"
python3 -m compileall -q -j 0 "$site" >/dev/null 2>&1 || true
