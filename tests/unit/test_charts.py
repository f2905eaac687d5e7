"""Axes, charts and the page that all reports share."""

import math
from html.parser import HTMLParser

import pytest

from rayloom import axes, charts, page
from rayloom.axes import Axis
from rayloom.charts import Mark

EVIL = '"><script>alert(1)</script>'
ACROSS, UP = Axis("x", 0.0, 10.0), Axis("y", 0.0, 1.0)


@pytest.mark.parametrize(
    ("axis", "value", "expected"),
    [
        (Axis("x", 2.0, 4.0), 2.5, 0.25),
        (Axis("x", 2.0, 4.0), 9, 1.0),
        (Axis("x", 2.0, 4.0), -9, 0.0),
        (Axis("x", 2.0, 2.0), 2.0, 0.5),
        (Axis("x", -1.7e308, 1.7e308), 0.0, 0.5),
        (Axis("x", 1e-4, 1e-2, log=True), 1e-3, 0.5),
        (axes.of_categories("x", ["a", [1, 2], True]), [1, 2], 0.5),
        (axes.of_categories("x", ["a", True, 1]), 1, 1.0),
        (axes.of_categories("x", ["a"]), "a", 0.5),
    ],
)
def test_a_value_has_its_place(axis, value, expected):
    assert axis.at(value) == pytest.approx(expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "a", True])
def test_what_is_no_number_has_no_place_on_an_axis_of_numbers(value):
    assert ACROSS.at(value) is None


def test_an_unknown_category_has_no_place():
    assert axes.of_categories("x", ["a", "b"]).at("c") is None


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (Axis("x", 0.0, 0.5), ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        (Axis("x", 0.58, 0.7), ["0.58", "0.6", "0.62", "0.64", "0.66", "0.68", "0.7"]),
        (Axis("x", 0.0, 0.3), ["0", "0.1", "0.2", "0.3"]),
        (Axis("x", 1, 3, whole=True), ["1", "2", "3"]),
        (Axis("x", 1e-5, 1e-1, log=True), ["1e-05", "0.0001", "0.001", "0.01", "0.1"]),
        (Axis("x", 0.15, 0.9, log=True), ["0.2", "0.5"]),
        (Axis("x", 3.0, 3.0), ["3"]),
        (Axis("x", 0.0, 5e-324), ["0", "4.941e-324"]),
        (Axis("x", 0.0, 4e-14), ["0", "1e-14", "2e-14", "3e-14", "4e-14"]),
        (Axis("x", 1.1, 1.3, log=True), ["1.1", "1.3"]),
    ],
)
def test_what_is_written_beside_an_axis(axis, expected):
    assert [name for _, name in axis.ticks()] == expected


def test_of_many_categories_some_are_written():
    assert len(axes.of_categories("x", range(1000)).ticks()) == axes.MOST_NAMES


def test_an_axis_has_room_for_all_values_and_for_its_range():
    axis = axes.of_numbers("x", [5.0, math.nan, -1.0], 0.0, 2.0, log=True)
    assert (axis.low, axis.high, axis.log) == (-1.0, 5.0, False)


def test_a_later_dot_is_above_an_earlier_one():
    drawn = charts.scatter([Mark([(1.0, 0.5)], "c0"), Mark([(2.0, 0.5)], "best")], ACROSS, UP)
    assert drawn.index('class="dot c0"') < drawn.index('class="dot best"')


def test_what_has_no_place_is_not_drawn():
    marks = [Mark([(1.0, math.nan)], "c0"), Mark([("a", 0.5)], "c0"), Mark([], "c0")]
    assert "<circle" not in charts.scatter(marks, ACROSS, UP)


def test_a_curve_of_one_point_is_a_dot():
    drawn = charts.curves([Mark([(1.0, 0.5)], "v1"), Mark([(1.0, 0.5), (2.0, 0.7)], "v2")], ACROSS, UP)
    assert (drawn.count("<circle"), drawn.count("<polyline")) == (1, 1)


def test_a_curve_leaves_out_what_is_not_finite():
    drawn = charts.curves([Mark([(0.0, 0.0), (5.0, math.nan), (10.0, 1.0)], "v1")], ACROSS, UP)
    points = drawn.split('points="')[1].split('"')[0].split()
    assert len(points) == 2


def test_rungs_stand_upright():
    assert charts.curves([], ACROSS, UP, upright=[3.0, math.nan]).count('class="rung"') == 1


def test_a_line_passes_below_an_axis_that_it_has_no_value_on():
    drawn = charts.parallel([([0.0, None], "v1", "")], [ACROSS, UP])
    first, second = (float(point.split(",")[1]) for point in drawn.split('points="')[1].split('"')[0].split())
    assert first < second and "not set" in drawn


@pytest.mark.parametrize(
    "drawn",
    [
        charts.parallel([([0.5], EVIL, EVIL)], [Axis(EVIL)]),
        charts.scatter([Mark([(1.0, 0.5)], EVIL, EVIL)], Axis(EVIL), UP, [Mark([(1.0, 0.5)], EVIL, EVIL)]),
        charts.scatter([], axes.of_categories(EVIL, [EVIL]), UP),
        charts.stacked({EVIL: {EVIL: 1.0}}, EVIL),
        page.html(EVIL, {EVIL: EVIL}, page.section("x", EVIL, EVIL) + page.bullets([EVIL])),
        page.side_by_side({EVIL: "x"}, EVIL),
        page.table([EVIL], []),
        "\n".join(page.markdown_table([EVIL], [[EVIL]])),
    ],
)
def test_no_text_becomes_html(drawn):
    assert "<script" not in drawn and "&lt;s" in drawn


def test_parts_have_the_colours_asked_for():
    assert "var(--c3)" in charts.stacked({"a": {"x": 1.0, "y": 2.0}}, "s", colours={"y": 3})


def test_a_card_without_content_is_left_out():
    assert page.section("", "title", "note") == page.side_by_side({}, "note") == ""


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (axes.said(0.00312345), "0.003123"),
        (axes.said(True), "true"),
        (axes.said([64, None]), "[64, null]"),
        (page.figure(0.69321), "0.6932"),
        (page.figure(-1234.56), "-1235"),
        (page.figure(0.0), "0.0000"),
        (page.figure(1.23e-5), "1.23e-05"),
        (page.figure(math.nan), "–"),
        (page.figure(None), "–"),
        (page.seconds(3.14), "3.1 s"),
        (page.seconds(75.2), "1 min 15 s"),
        (page.seconds(59.97), "1 min 0 s"),
        (page.seconds(7300), "2 h 1 min"),
        (page.seconds(math.inf), "–"),
        (page.cut("dropout", 5), "drop…"),
        (page.cell("a|b\n<i>"), "a\\|b &lt;i&gt;"),
    ],
)
def test_what_people_read(made, expected):
    assert made == expected


class Nesting(HTMLParser):
    """Fails where an element ends that is not the last one open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes) -> None:
        pass


def test_the_page_is_well_formed():
    parser = Nesting()
    chart = charts.curves([Mark([(1.0, 0.5), (2.0, 0.1)], "v1", "<b>")], ACROSS, UP, [1.0])
    parser.feed(page.html("title", {"a": 1}, page.side_by_side({"chart": chart}) + page.section(page.table(["a"], [["1"]]))))
    assert parser.open == []
