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
