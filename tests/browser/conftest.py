"""A headless Chromium, and pages to look at in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from analyzer.details import Details
from analyzer.options import Options
from analyzer.pipeline import examine
from analyzer.reporters.comparison_page import comparison_report
from analyzer.reporters.html import page as html_page
from analyzer.reporters.report import hang_page, report
from heuristics.hang import hang_report
from parsers import read
from tests.analyzer.gate.runs import hostile_comparison
from tests.analyzer.report_files import hostile_job, hung_job

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OWN = ("file:", "data:")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or any that is on the path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(sample_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A captured pipeline, a job and a comparison with names that are attacks, and a job that hangs."""
    folder = tmp_path_factory.mktemp("pages")
    captured = examine(sample_traces / "tp2_pp2_dp2", Options())
    hostile = examine(hostile_job(folder), Options())
    dumps = hung_job(folder / "dumps")
    written = {
        "captured": html_page(report(Details(captured))),
        "hostile": html_page(report(Details(hostile))),
        "comparison": html_page(comparison_report(hostile_comparison())),
        "hang": html_page(hang_page(hang_report(trace for path in dumps for trace in read(path)))),
    }
    for name, text in written.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in written}


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Iterator[Callable[..., Page]]:
    """Open one of the pages; what it asks for or complains of is in its ``faults``."""
    contexts = []

    def open_page(name: str, **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on("request", lambda request: faults.append(request.url) if not request.url.startswith(OWN) else None)
        page.faults = faults  # type: ignore[attr-defined]
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
