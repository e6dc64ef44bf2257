"""docs/conformance.md says what the markers on the tests say, and leaves no statement out."""

from tests.conformance import PAGE, load, page


def test_the_page_is_made_from_the_markers() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.conformance > docs/conformance.md"


def test_every_statement_that_binds_a_server_has_a_test_or_a_reason() -> None:
    statements = [each for found in load().values() for each in found.values() if each.binds_server]
    assert len(statements) > 200
    assert [each.name for each in statements if not each.tests and not each.why_untested] == []


def test_no_reason_is_left_over() -> None:
    statements = [each for found in load().values() for each in found.values()]
    assert [each.name for each in statements if each.tests and each.why_untested] == []
