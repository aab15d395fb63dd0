"""What is taken for a secret, and what only reads like one."""

from __future__ import annotations

import pytest

from stack_builder.report.redact import HIDDEN, Redactor


@pytest.mark.parametrize(
    "text",
    [
        "--api-key s3cretvalue",
        "--hf-token 's3cretvalue'",
        "token=s3cretvalue",
        '{"password": "s3cretvalue"}',
        "secret: s3cretvalue",
    ],
)
def test_a_value_that_is_called_a_secret_is_hidden(text: str) -> None:
    shown = Redactor({}, "", "").text(text)
    assert "s3cretvalue" not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        "#token: 96, token usage: 0.00, cuda graph: True",
        "gen throughput (token/s): 2.73",
        "--max-total-tokens 65536",
        "api_key=None,",
    ],
)
def test_a_server_s_log_is_shown_as_it_is(text: str) -> None:
    assert Redactor({}, "", "").text(text) == text


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
    ],
)
def test_a_home_is_one_only_at_the_start_of_a_path(text: str, shown: str) -> None:
    assert Redactor({"HOME": "/srv/a/home"}, "", "").text(text) == shown
