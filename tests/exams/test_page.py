"""The page of the exams' results is made of the tables."""

from __future__ import annotations

from exams.page import PAGE, format_page


def test_the_page_is_that_of_the_tables():
    assert PAGE.read_text(encoding="utf-8") == format_page()
