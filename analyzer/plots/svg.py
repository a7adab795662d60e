"""A figure as SVG that can stand inside a page: no ids that clash, colours that the page may swap, few digits."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from analyzer.plots.theme import COLOURS, INK, PAPER, QUIET, RULE, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIABLES = {colour: f"--{name}" for name, colour in COLOURS.items()} | {
    INK: "--ink",
    QUIET: "--quiet",
    RULE: "--rule",
    PAPER: "--paper",
}
"""CSS custom properties that stand for our colours; a page must define them all."""

_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DIGITS = re.compile(r"(-?\d+\.\d)\d+")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FAMILY = re.compile(r"font-family: [^;]+; ?")
_KEPT = frozenset({"clip-path", "d", "fill", "height", "href", "id", "patternUnits", "style", "transform", "width", "x",
                   "y", "preserveAspectRatio", "viewBox"})  # fmt: skip


def svg(figure: Figure, name: str) -> str:
    """SVG text of a figure.

    Args:
        figure: made under `analyzer.plots.theme.style`.
        name: distinct within the page; letters and dashes. It prefixes every id.

    Returns:
        One ``<svg>`` element without an accessible name: the page has to give it one.
    """
    raw = io.BytesIO()
    with style(), warnings.catch_warnings():
        # A glyph that Matplotlib's font lacks is drawn by the reader's own.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        import matplotlib as mpl

        mpl.rcParams["svg.hashsalt"] = name
        figure.savefig(raw, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(raw.getvalue())
    used = _referred(root)
    for element in root.iter():
        _simplify(element, name, used)
    for gone in ("width", "height"):
        root.attrib.pop(gone, None)
    root.set("xmlns", _SVG)
    return re.sub(r"\n\s*", "", ElementTree.tostring(_flat(root), encoding="unicode"))


def _referred(root: ElementTree.Element) -> set[str]:
    """Ids that something in the picture refers to."""
    found: set[str] = set()
    for element in root.iter():
        for value in element.attrib.values():
            found |= set(re.findall(r"url\(#([^)]+)\)", value))
        link = element.get(f"{{{_LINK}}}href", "")
        if link.startswith("#"):
            found.add(link[1:])
    return found


def _simplify(element: ElementTree.Element, name: str, used: set[str]) -> None:
    element.tag = element.tag.rpartition("}")[2]
    attributes = {}
    for key, value in element.attrib.items():
        key = key.rpartition("}")[2]
        if key not in _KEPT or (key == "id" and value not in used):
            continue
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href" and value.startswith("#"):
            value = f"#{name}-{value[1:]}"
        elif key in ("d", "x", "y", "width", "height"):
            value = _DIGITS.sub(r"\1", " ".join(value.split()))
        value = value.replace("url(#", f"url(#{name}-")
        attributes[key] = value
    if "fill" in attributes:  # the ground of a hatch
        attributes["style"] = f"fill: {attributes.pop('fill')}"
    if "style" in attributes:
        attributes["style"] = _COLOUR.sub(_variable, _FAMILY.sub("", attributes["style"]))
    element.attrib.clear()
    element.attrib.update(attributes)


def _variable(found: re.Match[str]) -> str:
    return f"var({VARIABLES[found[0]]})" if found[0] in VARIABLES else found[0]


def _flat(element: ElementTree.Element) -> ElementTree.Element:
    """Without groups that say nothing."""
    children = list(element)
    for child in children:
        element.remove(child)
    for child in children:
        if child.tag in ("metadata", "style"):
            continue
        _flat(child)
        if child.tag == "g" and not child.attrib:
            element.extend(list(child))
        elif child.tag != "defs" or len(child):
            element.append(child)
    return element
