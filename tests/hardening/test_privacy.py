"""Secrets planted everywhere, and every output and file of the commands searched for them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hardening.hostile import Attempt, attempt
from tests.hardening.plugin import Recorder
from tests.hardening.test_hostile_archives import BUILD, good

USER, HOST = "verysecretuser", "verysecrethost"
SECRETS = {
    "user": USER,
    "host": HOST,
    "home": f"/home/{USER}",
    "hf": "hf_PlantedTokenPlantedToken",
    "key": "planted-api-key-4711",
    "index": "planted-index-password",
    "docker": "planted-registry-password",
    "other": "planted-environment-value",
}
LOG = f"""Traceback (most recent call last):
  File "/home/{USER}/venv/lib/python3.11/site-packages/sgl_kernel/__init__.py", line 9, in <module>
ImportError: /home/{USER}/venv/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib on {HOST}
server_args=ServerArgs(api_key='{SECRETS["key"]}', hf_token={SECRETS["hf"]}) http://u:{SECRETS["index"]}@index.example/
"""


@pytest.fixture
def planted(tiny: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attempt]:
    """Call ``stackb`` where everything that could be told is a secret."""
    import socket

    home = tmp_path / "home" / USER
    (home / ".docker").mkdir(parents=True)
    auth = base64.b64encode(f"robot:{SECRETS['docker']}".encode()).decode()
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {"127.0.0.1:9": {"auth": auth}}}))
    for name, value in {
        "HOME": str(home), "USER": USER, "LOGNAME": USER, "USERNAME": USER, "HOSTNAME": HOST,
        "HF_TOKEN": SECRETS["hf"], "OPENAI_API_KEY": SECRETS["key"], "SOME_SETTING": SECRETS["other"],
        "UV_DEFAULT_INDEX": f"http://robot:{SECRETS['index']}@127.0.0.1:9/simple",
        "STACKB_STATE_DIR": str(tmp_path / "state"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr("stack_builder.wheels.http.ATTEMPTS", 1)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    tiny(good())
    (tmp_path / "server.log").write_text(LOG)
    (tmp_path / "key").write_text(SECRETS["key"])
    return lambda *arguments: attempt(arguments, tmp_path)


COMMANDS: dict[str, list[str]] = {
    "build": BUILD,
    "explain": ["explain", "server.log"],
    "explain as JSON": ["explain", "server.log", "--format", "json"],
    "explain as SARIF": ["explain", "server.log", "--format", "sarif"],
    "fetch from an index with a password": ["fetch", "tiny"],
    "lock --check as JSON": ["lock", "tiny", "--check", "--format", "json"],
    "doctor of wheels and host as JSON": ["doctor", "wheels:wheels", "--format", "json"],
    "doctor of a missing folder": ["doctor", f"venv:/home/{USER}/none"],
    "sbom": ["sbom", "tiny"],
    "bench with a key": ["bench", "http://127.0.0.1:9", "--api-key-file", "key", "--output", "results.json"],
    "history": ["history"],
    "push with a password": ["push", "oci:out/tiny", "127.0.0.1:9/x:y"],
    "verify": ["verify", "oci:out/tiny", "--quick", "--format", "json"],
    "export compose": ["export", "compose", "tiny", "--model", "org/model", "--image", f"x@sha256:{'0' * 64}"],
    "serve --dry-run with a key": [
        "serve", "tiny", "--spec", "none", "--model", "org/model", "--dry-run", "--", "--api-key", SECRETS["key"],
    ],
    "serve status": ["serve", "--status"],
    "rules": ["rules", "LOG001"],
}  # fmt: skip


def test_no_planted_secret_comes_out(planted: Callable[..., Attempt], tmp_path: Path, hardened: Recorder) -> None:
    mine = {path for path in tmp_path.rglob("*") if path.is_file()}
    for name, arguments in COMMANDS.items():
        done = planted(*arguments)
        for secret in SECRETS.values():
            assert secret not in done.out + done.said, f"{name}: {secret}"
        hardened("secrets", f"stackb {name}", bound="")
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in mine]
    assert any(path.name == "index.json" for path in written)
    for path in written:
        data = path.read_bytes()
        for secret in SECRETS.values():
            assert secret.encode() not in data, f"{path}: {secret}"


def test_what_is_asked_for_is_shown(planted: Callable[..., Attempt]) -> None:
    done = planted("--no-redact", "explain", "server.log")
    assert SECRETS["home"] in "".join(done.out.split()), done
