"""The page of a served model: HTML that holds whatever names and values a model has as text, and an input for each field.

Whether it works in a browser is not shown here.
"""

import base64
import hashlib
import json
from html.parser import HTMLParser

import pytest

from rayloom.features import CategoryState, ColumnState, DateState, HashState, ImageState, NumberState, TextState
from rayloom.serving import page
from rayloom.serving.schema import Schema

HOSTILE = """</script></textarea></select>"'><img src=x onerror=alert(1)> &amp; ✈"""
VOID = {"meta", "input", "img", "br"}

COLUMNS: dict[str, ColumnState] = {
    "day": DateState(parts=["day"]),
    "carrier": CategoryState(values=["AA", "UA"]),
    "gate": CategoryState(values=["1", "3"], type="integer"),
    "holiday": CategoryState(values=["false", "true"], type="boolean"),
    "tail": HashState(buckets=8),
    "number": HashState(buckets=8, type="integer"),
    "distance": NumberState(center=0.0, spread=1.0, impute=0.0, flag=True),
    "remark": TextState(tokenizer="{}", max_tokens=4, vocabulary=4),
    "face": ImageState(height=2, width=3, channels=1, resize=False, mean=[0.5], deviation=[0.25]),
}
EXAMPLE = {
    "day": "2013-11-05", "carrier": "AA", "gate": 3, "holiday": True, "tail": "N1", "number": 2**62, "distance": 500.5,
    "remark": "so late", "face": "QUI=",
}  # fmt: skip
PLAN = {
    "strategy": "canary",
    "stable": 3,
    "candidate": 4,
    "share": 0.25,
    "step": 2,
    "state": "rolling",
    "reason": "so far so good",
}


class Parsed(HTMLParser):
    """A page's elements as (tag, attributes, text up to the next tag). Raises AssertionError where tags do not nest."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict, str]] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, dict(attrs), ""))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack:
            tag, attributes, text = self.elements[-1]
            self.elements[-1] = (tag, attributes, text + data)

    def find(self, *tags: str, **wanted: str | None) -> list[tuple[dict, str]]:
        """Attributes and text of the elements of these tags that have these attributes."""
        return [
            (attributes, text)
            for tag, attributes, text in self.elements
            if tag in tags and all(name in attributes and attributes[name] == value for name, value in wanted.items())
        ]

    def text(self) -> str:
        return " ".join(text for tag, _, text in self.elements if tag not in ("script", "style"))


def card(**changes) -> dict:
    base = {
        "model": {"name": "flights", "version": 3},
        "dataset": "3f2a",
        "classes": [0, 1],
        "metrics": {"validation_auc": 0.7},
    }
    return {**base, "example": EXAMPLE, **changes}


def made(columns: dict[str, ColumnState] = COLUMNS, plan: dict = PLAN, **changes) -> Parsed:
    return Parsed(page.html(Schema(columns), card(**changes), plan))


def value_of(name: str, value, column: ColumnState | None = None) -> str | None:
    """What a field's own input holds."""
    parsed = made({name: column or COLUMNS[name]}, example={name: value})
    (found,) = [attributes for attributes, _ in parsed.find("input", "select", "textarea") if "data-value" in attributes]
    return found.get("value")


def chosen(value, column: ColumnState) -> tuple[dict, str]:
    """The one option that a choice begins with."""
    (option,) = [option for option in made({"x": column}, example={"x": value}).find("option") if "selected" in option[0]]
    return option


def test_each_field_has_an_input_in_the_schemas_order():
    parsed = made()
    assert [attributes["data-name"] for attributes, _ in parsed.find("div") if "data-name" in attributes] == list(COLUMNS)
    described = [attributes["aria-describedby"] for _, attributes, _ in parsed.elements if "aria-describedby" in attributes]
    assert described == [f"s{place}" for place in range(len(COLUMNS))]


@pytest.mark.parametrize(
    ("name", "tag", "type", "kind"),
    [
        ("day", "input", "date", "date"),
        ("carrier", "select", None, "text"),
        ("gate", "select", None, "integer"),
        ("holiday", "input", "radio", "either"),
        ("tail", "input", "text", "text"),
        ("number", "input", "number", "integer"),
        ("distance", "input", "number", "number"),
        ("remark", "textarea", None, "text"),
        ("face", "input", "file", "picture"),
    ],
)
def test_an_input_is_of_its_fields_kind(name, tag, type, kind):
    parsed = made({name: COLUMNS[name]})
    inputs = [attributes for attributes, _ in parsed.find(tag) if "data-value" in attributes]
    assert inputs and {attributes.get("type") for attributes in inputs} == {type}
    assert parsed.find("div", **{"data-name": name, "data-kind": kind})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("distance", 500.5, "500.5"),
        ("distance", 500.0, "500"),
        ("distance", 1e300, "1e+300"),
        ("distance", None, ""),
        ("number", 2**63 - 1, "9223372036854775807"),
        ("tail", "N1", "N1"),
        ("tail", None, ""),
        ("day", "2013-11-05", "2013-11-05"),
        ("day", "2024-07-01T00:30:00+02:00", "2024-06-30"),
        ("day", None, ""),
    ],
)
def test_the_example_fills_its_input(name, value, shown):
    assert value_of(name, value) == shown


def test_a_text_fills_its_area():
    assert made().find("textarea")[0][1] == "so late"


@pytest.mark.parametrize(("value", "said"), [(True, "true"), (False, "false"), (None, "null")])
def test_a_boolean_is_true_false_or_not_known(value, said):
    parsed = made({"holiday": COLUMNS["holiday"]}, example={"holiday": value})
    assert [attributes["value"] for attributes, _ in parsed.find("input", type="radio") if "checked" in attributes] == [said]


def test_a_choice_has_the_known_values_another_and_none():
    options = made({"carrier": COLUMNS["carrier"]}).find("option")
    assert [text for _, text in options] == ["AA", "UA", "another …", "not known"]
    assert [attributes.get("data-mode") for attributes, _ in options] == [None, None, "other", "null"]


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        ("UA", COLUMNS["carrier"], "UA"),
        ("ZZ", COLUMNS["carrier"], "another …"),
        (None, COLUMNS["carrier"], "not known"),
        (3, COLUMNS["gate"], "3"),
        (2, COLUMNS["gate"], "another …"),
        ("", CategoryState(values=["", "AA"]), ""),
    ],
)
def test_a_choice_begins_with_the_example(value, column, text):
    assert chosen(value, column)[1] == text


def test_another_value_stands_in_the_free_text():
    parsed = made({"gate": COLUMNS["gate"]}, example={"gate": 2})
    assert [attributes["value"] for attributes, _ in parsed.find("input", **{"class": "free"})] == ["2"]


def test_a_category_of_many_values_offers_the_first():
    many = CategoryState(values=[f"v{place}" for place in range(page.KNOWN + 5)])
    assert len(made({"x": many}, example={"x": "v1003"}).find("option")) == page.KNOWN + 2
    assert chosen("v1003", many)[1] == "another …"


def test_a_category_without_known_values_is_typed_in():
    assert value_of("x", "AA", CategoryState(values=[], constant=True)) == "AA"


def test_an_image_brings_its_bytes():
    assert made().find("img", **{"data-example": "QUI="})


def test_without_an_example_all_is_not_known():
    parsed = made(example=None)
    own = [attributes for attributes, _ in parsed.find("input") if "data-value" in attributes and "value" in attributes]
    assert {attributes["value"] for attributes in own if attributes["type"] != "radio"} == {""}
    assert [text for attributes, text in parsed.find("option") if "selected" in attributes] == ["not known", "not known"]


HOSTILE_PAGES = {
    "field": {"columns": {HOSTILE: COLUMNS["carrier"]}, "example": {HOSTILE: "AA"}},
    "boolean": {"columns": {HOSTILE: COLUMNS["holiday"]}, "example": {HOSTILE: True}},
    "known value": {"columns": {"x": CategoryState(values=[HOSTILE])}, "example": {"x": HOSTILE}},
    "other value": {"columns": {"x": COLUMNS["carrier"]}, "example": {"x": HOSTILE}},
    "hashed value": {"columns": {"x": COLUMNS["tail"]}, "example": {"x": HOSTILE}},
    "text": {"columns": {"x": COLUMNS["remark"]}, "example": {"x": HOSTILE}},
    "image": {"columns": {"x": COLUMNS["face"]}, "example": {"x": HOSTILE}},
    "date": {"columns": {"x": COLUMNS["day"]}, "example": {"x": HOSTILE}},
    "model": {"model": {"name": HOSTILE, "version": HOSTILE}},
    "dataset": {"dataset": HOSTILE},
    "label": {"label": HOSTILE},
    "class": {"classes": [HOSTILE, "b"]},
    "metric": {"metrics": {HOSTILE: 0.5}},
    "reason": {"plan": {**PLAN, "reason": HOSTILE}},
    "plan": {"plan": {**PLAN, "strategy": HOSTILE, "state": HOSTILE, "step": HOSTILE, "stable": HOSTILE}},
}


@pytest.mark.parametrize("place", HOSTILE_PAGES)
def test_what_a_model_brings_stays_text(place):
    parsed = made(**HOSTILE_PAGES[place])
    assert [text for _, text in parsed.find("script")] == [page.SCRIPT] and [text for _, text in parsed.find("style")] == [
        page.STYLE
    ]
    assert not [name for _, attributes, _ in parsed.elements for name in attributes if name.startswith("on") or name == "style"]
    assert not parsed.find("img", src="x")
    values = [value for _, attributes, _ in parsed.elements for value in attributes.values() if value]
    assert any(HOSTILE[:20] in text for text in [*values, parsed.text()])


def test_a_hostile_name_is_the_same_name_again():
    parsed = made({HOSTILE: COLUMNS["tail"]}, example={HOSTILE: HOSTILE})
    assert parsed.find("div", **{"data-name": HOSTILE}) and parsed.find("input", value=HOSTILE)


def test_the_locked_page_escapes_its_name():
    assert Parsed(page.locked(HOSTILE)).find("h1") == [({}, HOSTILE)]


@pytest.mark.parametrize("text", [page.html(Schema(COLUMNS), card(), PLAN), page.locked("flights")], ids=["open", "locked"])
def test_the_policy_allows_what_the_page_has_and_no_more(text):
    parsed = Parsed(text)
    (meta,) = [attributes["content"] for attributes, _ in parsed.find("meta", **{"http-equiv": "Content-Security-Policy"})]
    allowed = dict(part.strip().split(" ", 1) for part in meta.split(";"))
    hashes = {
        tag: "'sha256-" + base64.b64encode(hashlib.sha256(parsed.find(tag)[0][1].encode()).digest()).decode() + "'"
        for tag in ("script", "style")
    }
    assert allowed == {
        "default-src": "'none'", "script-src": hashes["script"], "style-src": hashes["style"], "connect-src": "'self'",
        "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip


def test_the_header_has_the_policy_and_forbids_frames():
    assert dict(page.headers())[b"content-security-policy"].decode() == page.policy() + "; frame-ancestors 'none'"


def test_the_page_needs_no_other_file():
    loads = [attributes for _, attributes, _ in made().elements if attributes.keys() & {"src", "href", "action"}]
    assert loads == [] and "url(" not in page.STYLE and "@import" not in page.STYLE and "http" not in page.SCRIPT


@pytest.mark.parametrize("stored", ["localStorage", "sessionStorage", "cookie", "indexedDB"])
def test_the_key_is_stored_nowhere(stored):
    assert stored not in page.SCRIPT


@pytest.mark.parametrize("inserts", ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("])
def test_the_script_makes_no_html_of_what_it_is_told(inserts):
    assert inserts not in page.SCRIPT


@pytest.mark.parametrize("text", [page.html(Schema(COLUMNS), card(), PLAN), page.locked("flights")], ids=["open", "locked"])
def test_a_key_is_typed_into_a_password_field_without_a_name(text):
    ((attributes, _),) = Parsed(text).find("input", id="key")
    assert (attributes["type"], attributes["autocomplete"]) == ("password", "off") and "name" not in attributes


def test_the_locked_page_tells_nothing_but_the_name():
    parsed = Parsed(page.locked("flights"))
    assert not parsed.find("main", "select", "textarea") and "flights" in parsed.text()


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({**PLAN, "candidate": None, "share": 0.0}, "Version 3 answers every request."),
        (PLAN, "Version 3 answers 75 % of the requests, version 4 25 %."),
        ({**PLAN, "share": 0.005}, "Version 3 answers 99.5 % of the requests, version 4 0.5 %."),
        (
            {**PLAN, "strategy": "shadow"},
            "Version 3 answers every request. Version 4 answers 25 % of them, too, to be compared.",
        ),
    ],
)
def test_the_page_says_who_answers_and_why(plan, said):
    text = made(plan=plan).text()
    assert said in text and "so far so good" in text


def test_without_a_plan_nothing_is_said_of_it():
    assert "Who answers" not in made(plan={}).text()


@pytest.mark.parametrize("said", ["flights", "version 3", "3f2a", "0, 1", "validation auc", "0.7000", "late", "from 9 fields"])
def test_the_card_is_on_the_page(said):
    assert said in made(label="late").text()


def test_of_many_classes_the_first_are_named():
    assert "c10, c11 and 8 more" in made(classes=[f"c{place}" for place in range(20)]).text()


def test_the_plan_that_is_shown_is_on_the_page_for_the_script_to_compare():
    ((attributes, _),) = made().find("section", **{"class": "plan"})
    assert json.loads(attributes["data-plan"]) == PLAN


@pytest.mark.parametrize("part", ["plan", "card", "answer", "lost", "below"])
def test_the_script_finds_what_it_renews(part):
    classes = [attributes.get("class", "").split() for _, attributes, _ in made().elements]
    assert sum(part in names for names in classes) == 1 and f'".{part}"' in page.SCRIPT


def test_without_a_plan_there_is_none_to_follow():
    assert not made(plan={}).find("section", **{"class": "plan"})
