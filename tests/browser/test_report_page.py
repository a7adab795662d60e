"""The report in a real browser: it loads, sorts, filters, prints, and can be read by everybody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page

Open = Callable[..., Page]

PAGES = ("captured", "hostile", "comparison", "hang")
EXPOSED = "th:has-text('exposed') button"


def column(page: Page, header: str) -> list[str]:
    """The cells of a column of the collectives, top to bottom, of the rows that are shown."""
    headers = [text.strip() for text in page.locator("#table-collectives thead th").all_inner_texts()]
    place = next(i for i, text in enumerate(headers) if text.startswith(header))
    return [text.strip() for text in rows(page).locator(f"td:nth-child({place + 1})").all_inner_texts()]


def rows(page: Page) -> Locator:
    return page.locator("#table-collectives tbody tr:not([hidden])")


@pytest.mark.parametrize("name", PAGES)
def test_the_page_asks_for_nothing_and_complains_of_nothing(opened: Open, name: str) -> None:
    page = opened(name)
    assert page.locator("h1").count() == 1
    assert page.locator("svg[role=img]").count() >= 1
    assert page.faults == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["hostile", "comparison", "hang"])
def test_names_from_a_trace_stay_words(opened: Open, name: str) -> None:
    page = opened(name)
    assert page.evaluate("window.hacked === undefined")
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
    text = page.locator("body").inner_text()
    assert "<script>window.hacked=1</script>" in text
    assert "\u202e" not in page.content()


def test_a_click_on_a_header_sorts_by_number_and_again_the_other_way(opened: Open) -> None:
    page = opened("captured")
    page.click(f"#table-collectives {EXPOSED}")
    down = [float(text) for text in column(page, "exposed")]
    assert down == sorted(down, reverse=True)
    assert page.locator("#table-collectives th[aria-sort]").get_attribute("aria-sort") == "descending"
    page.click(f"#table-collectives {EXPOSED}")
    assert [float(text) for text in column(page, "exposed")] == down[::-1]
    assert page.locator("#table-collectives th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_words_sort_as_words_and_what_is_not_known_comes_last(opened: Open) -> None:
    page = opened("captured")
    page.click("#table-collectives th:has-text('primitive') button")
    found = column(page, "primitive")
    assert found == sorted(found)
    for _ in range(2):
        page.click("#table-collectives th:has-text('phase') button")
        phases = column(page, "phase")
        assert "–" in phases
        assert phases[-phases.count("–") :] == ["–"] * phases.count("–")


def test_words_and_dimension_filter(opened: Open) -> None:
    page = opened("captured")
    every = rows(page).count()
    page.fill(".tools input", "all_gather FORWARD")
    assert column(page, "primitive") == ["all_gather"]
    assert page.locator(".tools output").inner_text() == f"1 of {every} rows"
    page.fill(".tools input", "")
    page.select_option(".tools select", "pp")
    assert set(column(page, "dim")) == {"pp"}
    page.select_option(".tools select", "")
    assert rows(page).count() == every


def test_everything_works_from_the_keyboard(opened: Open) -> None:
    page = opened("captured")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    button = page.locator(f"#table-collectives {EXPOSED}")
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator("#table-collectives th[aria-sort=descending]").count() == 1
    page.locator(".tools input").focus()
    page.keyboard.type("send")
    assert set(column(page, "primitive")) == {"send_recv"}
    summary = page.locator("summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() == 1


def test_without_a_script_the_tables_are_plain(opened: Open) -> None:
    page = opened("captured", java_script_enabled=False)
    assert page.locator("#table-collectives tbody tr").count() == 9
    assert page.locator("#table-collectives th button").count() == 0
    assert not page.locator(".tools").is_visible()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_fault(opened: Open, name: str, scheme: str) -> None:
    page = opened(name, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = Axe().run(page).response["violations"]
    serious = [
        (fault["id"], fault["help"], fault["nodes"][0]["html"][:200], fault["nodes"][0].get("failureSummary", "")[:300])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_down_only(opened: Open, name: str) -> None:
    page = opened(name, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_dark_is_dark_and_pictures_follow(opened: Open) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    words = "getComputedStyle(document.querySelector('#step-anatomy svg text')).fill"
    light, dark = opened("captured", color_scheme="light"), opened("captured", color_scheme="dark")
    assert light.evaluate(background) == "rgb(254, 254, 254)"
    assert dark.evaluate(background) == "rgb(20, 24, 30)"
    assert light.evaluate(words) != dark.evaluate(words)


@pytest.mark.parametrize("name", PAGES)
def test_it_prints_in_light_colours_without_what_only_a_screen_can_use(opened: Open, name: str) -> None:
    page = opened(name, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    paper = page.pdf(format="A4", print_background=True)
    assert paper.startswith(b"%PDF-")
    assert 20_000 < len(paper) < 4_000_000
