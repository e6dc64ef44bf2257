"""docs/catalogue.md says what the markers on the tests say, and leaves no line out."""

from tests.catalogue import PAGE, State, load, page


def test_the_page_is_made_from_the_markers() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.catalogue > docs/catalogue.md"


def test_every_line_has_a_test_or_a_reason() -> None:
    assert [line.name for line in load().values() if bool(line.tests) == bool(line.why_untested)] == []


def test_only_a_line_with_tests_is_shown_partly() -> None:
    assert [line.name for line in load().values() if line.missing and line.state is not State.PARTLY] == []
