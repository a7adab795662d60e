"""A report as one HTML file that needs nothing else: styles, script and pictures are inside, and nothing is fetched.

Everything that comes from a trace is escaped, and characters that move text about are replaced. A content security
policy in the page allows one script, ours, by its hash: what escaping should miss could still not run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from analyzer.escaping import printable
from analyzer.reporters.blocks import Facts, Item, Picture, Section, Table, Words, cells
from analyzer.reporters.report import Report

if TYPE_CHECKING:
    import jinja2

__all__ = ["fragment", "page"]


def page(report: Report) -> str:
    """The page."""
    script = _source("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = _environment().get_template("page.html.j2")
    return template.render(report=report, script=script, digest=digest, style=_source("page.css")) + "\n"


def fragment(sections: Sequence[Section], opened: Sequence[str] = ()) -> str:
    """Sections that unfold, those named in ``opened`` already are; markup to put into somebody else's page."""
    template = _environment().get_template("fragment.html.j2")
    return template.render(sections=sections, open=opened, style=_source("fragment.css")) + "\n"


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.PackageLoader("analyzer.reporters.html", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_clean,
    )
    found.filters |= {"cells": cells, "slug": slug, "drawn": _drawn, "plain": _plain}
    found.tests |= {
        "facts": lambda part: isinstance(part, Facts),
        "table": lambda part: isinstance(part, Table),
        "item": lambda part: isinstance(part, Item),
        "picture": lambda part: isinstance(part, Picture),
    }
    return found


def _clean(value: Any) -> Any:
    """Texts without control characters and marks that turn their direction; what is already markup stays."""
    return printable(value) if type(value) is str else value


def _source(name: str) -> str:
    loader = _environment().loader
    if loader is None:
        raise RuntimeError("the environment has no templates")
    return loader.get_source(_environment(), name)[0]


def slug(title: str) -> str:
    """A title as an anchor."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())


def _plain(words: Words) -> str:
    return "".join(cell.text for cell in cells(words))


REM = 691.2 / 70
"""Points of a picture per rem of the page: what is made as wide as the text is as wide as the text."""

NARROWEST = 40.0
"""Rem below which a wide picture is scrolled instead of shrunk further: its words could not be read."""

PHONE = 22.0
"""Rem to which a small one may shrink: it fits the width of a phone."""


def _drawn(picture: Picture) -> str:
    """The picture as markup: its words were escaped when it was drawn."""
    from markupsafe import Markup, escape

    from analyzer.plots.svg import svg

    text = svg(picture.draw(), picture.name)
    width = float(text.split('viewBox="', 1)[1].split('"', 1)[0].split()[2]) / REM
    least = NARROWEST if width > NARROWEST else min(width, PHONE)
    size = f"max-width:{width:.1f}rem;min-width:{least:.1f}rem"
    named = f'<svg role="img" aria-label="{escape(printable(picture.alt))}" style="{size}"'
    return Markup(text.replace("<svg", named, 1))
