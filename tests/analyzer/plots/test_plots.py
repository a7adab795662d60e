"""Pictures: every one draws what its data says, in colours that mean the same everywhere."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from analyzer.details import Details
from analyzer.options import Options
from analyzer.pipeline import examine
from analyzer.plots import PICTURES, NothingToShowError
from analyzer.plots.svg import VARIABLES, svg
from analyzer.plots.theme import COLOURS


@pytest.fixture(scope="module")
def job(sample_traces: Path) -> Details:
    return Details(examine(sample_traces / "tp2_pp2_dp2", Options()))


@pytest.mark.parametrize("name", sorted(set(PICTURES) - {"expert_load"}))
def test_every_picture_draws_and_is_sound_xml(job: Details, name: str) -> None:
    text = svg(PICTURES[name](job), name)
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    assert all(one is not None and one.startswith(f"{name}-") for one in ids)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert {a or b for a, b in used} <= set(ids)
    assert "<style" not in text
    assert "<metadata" not in text


def test_pictures_draw_on_axes_that_are_given(job: Details) -> None:
    figure = Figure()
    ax = figure.subplots()
    assert PICTURES["step_anatomy"](job, ax) is figure
    assert len(ax.patches) == 8 * len(job.anatomy.parts)  # type: ignore[union-attr]


def test_bars_of_the_anatomy_are_as_long_as_the_parts(job: Details) -> None:
    figure = Figure()
    ax = figure.subplots()
    PICTURES["step_anatomy"](job, ax)
    found = job.anatomy
    widths = [patch.get_width() for patch in ax.patches[:8]]  # type: ignore[attr-defined]
    assert widths == pytest.approx((found.us[:, 0] / 1000).tolist())  # type: ignore[union-attr]
    assert ax.get_xlabel() == "per step, ms"


def test_slowness_has_the_same_scale_in_every_report(job: Details) -> None:
    for name in ("rank_step_heatmap", "stage_replica_heatmap"):
        figure = Figure()
        ax = figure.subplots()
        PICTURES[name](job, ax)
        assert ax.images[0].get_clim() == (1.0, 1.5)


def test_what_cannot_be_drawn_says_why(job: Details) -> None:
    with pytest.raises(NothingToShowError, match="no dispatch of tokens to experts names its split sizes"):
        PICTURES["expert_load"](job)


def test_pictures_leave_the_settings_of_the_reader_alone(job: Details) -> None:
    before = dict(mpl.rcParams)
    PICTURES["layout_mesh"](job)
    assert dict(mpl.rcParams) == before


def test_one_colour_means_one_thing() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert set(VARIABLES.values()) >= {f"--{name}" for name in COLOURS}


def test_words_in_a_picture_cannot_break_the_page() -> None:
    from analyzer.plots.theme import canvas, style

    with style():
        figure, ax = canvas(None, 2)
        ax.set_title('</svg><script>alert("$x$")</script>')
    text = svg(figure, "hostile")
    assert "<script" not in text
    title = [e.text for e in ElementTree.fromstring(text).iter() if e.text and "alert" in e.text]
    assert title == ['</svg><script>alert("$x$")</script>']
