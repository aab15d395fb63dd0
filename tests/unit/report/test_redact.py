"""What is taken for a secret, and what only reads like one."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from stack_builder.report.redact import HIDDEN, Redactor

ROOT = Path(__file__).parents[3]


VALUE = "s3cretvalue"
ADMIN = pwd.getpwuid(0).pw_dir
"""A home below neither /home nor /Users."""


@pytest.mark.parametrize(
    "text",
    [
        "--api-key s3cretvalue",
        "--hf-token 's3cretvalue'",
        "['--api-key', 's3cretvalue', '--port', '30000']",
        "token=s3cretvalue",
        '{"password": "s3cretvalue"}',
        r"{\"password\": \"s3cretvalue\"}",
        "password='a \\' quote and s3cretvalue'",
        "secret: s3cretvalue",
        "env: password=s3cretvalue",
        "AWS_SECRET_ACCESS_KEY=s3cretvalue",
        "AWS_SECRET_ACCESS_KEY=ab/cd+s3cretvalue==",
        "DB_PASSWD=a,s3cretvalue",
        "SECRET_KEY=s3cretvalue",
        "SSH_PRIVATE=s3cretvalue",
        "export VAULT_TOKEN_DEV=s3cretvalue",
        "MYSQL_PWD=s3cretvalue",
        "SMTP_PASS=s3cretvalue",
        "curl -H 'Cookie: lang=en; sessionid=s3cretvalue'",
        "Set-Cookie: sessionid=s3cretvalue; Path=/",
        "Authorization: Token s3cretvalue",
        "x-api-key: s3cretvalue",
        "-----BEGIN OPENSSH PRIVATE KEY-----\ns3cretvalue\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_value_that_is_called_a_secret_is_hidden(text: str) -> None:
    shown = Redactor({}, "", "").text(text)
    assert VALUE not in shown
    assert HIDDEN in shown
    assert Redactor({}, "", "").text(shown) == shown


@pytest.mark.parametrize("value", ["x", "123456", "correct", "a.b"])
def test_a_secret_of_any_form_is_hidden_where_its_name_says_so(value: str) -> None:
    assert (
        Redactor({}, "", "").text(f"AWS_SECRET_ACCESS_KEY={value} next=1") == f"AWS_SECRET_ACCESS_KEY={HIDDEN} next=1"
    )
    assert Redactor({}, "", "").text(f"f(password={value}, port=1)") == f"f(password={HIDDEN}, port=1)"


@pytest.mark.parametrize(
    "text",
    [
        "#token: 96, token usage: 0.00, cuda graph: True",
        "#new-token: 8192, #cached-token: 131072, token usage: 0.00",
        "gen throughput (token/s): 2.73",
        "max_total_tokens=1279744, max_total_num_tokens=400000, new_token_ratio=0.7, token_ratio: 0.123456",
        "--max-total-tokens 65536",
        "eos_token='<|endoftext|>', pad_token_id=151643, eos_token_id=[151645, 151643]",
        "speculative_token_map=/models/hot_token_ids.pt, tokenizer_path='org/model', tokenizer_mode=auto",
        "--speculative-token-map /models/hot_tokens.pt --tokenizer-path org/model",
        "api_key=None, admin_api_key=None, api_key='', port=30000",
        "def get(api_key: str | None = None, token: Optional[str] = None): self.token = self.token_of(x)",
        "binds every address without --api-key: give --api-key-file FILE or --host 127.0.0.1",
        "give --api-key or bind loopback; --api-key KEY shows it in ps, --api-key-file /run/key does not",
        "--api-key-file key, --api-key-file=/run/secrets/key, api_key_file: /run/secrets/key",
        "PWD=/workspace, --token=${HF_TOKEN}, -e HF_TOKEN",
        "ghcr.io/org/name@sha256:0000 and pkg@1.0",
    ],
)
def test_what_only_reads_like_a_secret_is_shown_as_it_is(text: str) -> None:
    assert Redactor({}, "", "").text(text) == text


@pytest.mark.parametrize("folder", ["checks", "tests/corpus/server-logs", "README.md"])
def test_rules_hints_and_logs_of_real_servers_hold_nothing_to_hide(folder: str) -> None:
    place = ROOT / folder
    for path in [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file()):
        for line in path.read_text(errors="replace").splitlines():
            assert HIDDEN not in Redactor({}, "", "").text(line.replace("https://user:secret@", "")), (path, line)


def test_a_value_of_the_environment_is_hidden_by_the_names_that_hide_one_in_a_text() -> None:
    environ = {"DB_PASSWD": "hunter2000", "SSH_PRIVATE": "abcdefgh", "TOKENIZER_PATH": "org/model", "X_FILE": "/a/file"}
    shown = Redactor(environ, "", "").text("hunter2000 abcdefgh org/model /a/file")
    assert shown == f"{HIDDEN} {HIDDEN} org/model /a/file"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("alice@vm:~/x$ stackb", f"{HIDDEN}:~/x$ stackb"),
        ("mail alice@example.org, root@vm", f"mail {HIDDEN}@example.org, root@{HIDDEN}"),
        ("ssh vm, user=alice", f"ssh vm, user={HIDDEN}"),
        ("/data/alice/models", f"/data/{HIDDEN}/models"),
        ("malice, alice-in-chains/model, vmlinux", "malice, alice-in-chains/model, vmlinux"),
        ("bob@gpu-7:~/x$ stackb", f"{HIDDEN}:~/x$ stackb"),
        ("[bob@gpu-7 x]# stackb", f"[{HIDDEN} x]# stackb"),
    ],
)
def test_a_short_name_is_one_where_it_stands_as_one(text: str, shown: str) -> None:
    assert Redactor({}, "alice", "vm").text(text) == shown


def test_a_long_line_takes_no_long_time() -> None:
    """Each of these took minutes where a character is looked at once for each one before it."""
    for text in ("a" * 100_000, "a='" * 30_000, "--token " * 10_000, "a@" * 40_000, "token='\\" * 10_000):
        Redactor({"HOME": "/home/a"}, "alice", "vm").text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/a/home/.cache/stackb/x", "~/.cache/stackb/x"),
        ("'/srv/a/home'", "'~'"),
        ("--from=/srv/a/home/x:/home/eve/y", "--from=~/x:~/y"),
        ("file:///home/eve/y", "file://~/y"),
        ("-I/home/eve/y -L/home/eve/z", "-I~/y -L~/z"),
        ("'a\\n/home/eve/y'", "'a\\n~/y'"),
        ("\x1b[31m/home/eve/y", "\x1b[31m~/y"),
        ("/mnt/srv/a/home/x", "/mnt/srv/a/home/x"),
        ("/mnt/home/data/x and /mnt/root", "/mnt/home/data/x and /mnt/root"),
        ("/srv/a/homes/x", "/srv/a/homes/x"),
        (f"{ADMIN}/x", f"{ADMIN}/x"),
        (r"C:\Users\alice\x and C:\Users\Alice Smith\x", r"~\x and ~\x"),
        (r"'C:\\Users\\alice'", "'~'"),
        ("C:/Users/alice/x", "~/x"),
    ],
)
def test_a_home_is_one_only_at_the_start_of_a_path(text: str, shown: str) -> None:
    assert Redactor({"HOME": "/srv/a/home"}, "", "").text(text) == shown
