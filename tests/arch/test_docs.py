"""Documents that are made from code, or must name what the code has."""

from __future__ import annotations

from pathlib import Path

from shared.settings import SETTINGS, settings_markdown

CONFIGURATION = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_configuration_page_is_up_to_date() -> None:
    assert CONFIGURATION.read_text() == settings_markdown(), (
        "regenerate it: python -m shared.settings > docs/configuration.md"
    )


def test_every_setting_is_on_the_configuration_page() -> None:
    page = CONFIGURATION.read_text()
    for row in SETTINGS:
        assert f"| `{row.name}`<br>`{row.env}` |" in page
        assert row.help.replace("|", "\\|") in page
