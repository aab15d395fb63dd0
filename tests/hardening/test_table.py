"""The committed table is the one that the tests give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hardening import table
from tests.hardening.table import Row

ROW = Row("fetch", "a | b", 3, 3, 7, 3, "stackb: no", "1 s", "hardening/test_table.py::test_a_row_reads_back")


@pytest.mark.parametrize("row", [ROW, Row("build", "x", 1, 1, None, None, "", "", "t.py::t")])
def test_a_row_reads_back(row: Row) -> None:
    assert table.parse(table.render([row])) == [row]


def test_rows_of_one_fault_add_up_and_must_agree() -> None:
    assert [(row.tried, row.cases) for row in table.merged([ROW, ROW])] == [(6, 14)]
    other = table.parse(table.render([ROW]).replace("stackb: no", "stackb: yes"))
    with pytest.raises(ValueError, match="two meanings"):
        table.merged([ROW, *other])


def test_the_document_is_what_would_be_written() -> None:
    """Whether its rows are those of the tests, each file's fixtures look at (tests/hardening/plugin.py)."""
    committed = table.parse(table.DOCUMENT.read_text(encoding="utf-8"))
    assert committed == table.merged(committed)
    assert [row.test for row in committed if not table.exists(row)] == []


def test_a_run_of_some_tests_keeps_the_rows_of_the_others() -> None:
    here = Row("cache", "x", 1, 1, None, None, "", "", "hardening/test_table.py::test_a_row_reads_back")
    again, other = replace(here, tried=2, survived=2), replace(ROW, test="test_cli.py::nobody")
    stays = replace(ROW, test="hardening/test_table.py::test_rows_of_one_fault_add_up_and_must_agree")
    assert table.renewed([here, stays, other], {here.test: [again]}) == [stays, again]
