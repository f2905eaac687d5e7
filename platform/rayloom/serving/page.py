"""The page at `/` of a served model: its card, who answers, a form made from the schema, and what the model says to it.

One HTML file that needs no other. Its Content-Security-Policy allows this one script and this one style, by their hashes, and
requests to where the page came from: what a name or a value has in it stays text. All that differs between two models stands in
elements and attributes, escaped; the script is the same for all.

An open page follows the plan: it asks /plan every few seconds, and where that says something new it takes what changed from the
page as it is now: who answers, and the version's card. What was typed in stays, unless another version has other fields.

With API keys (`rayloom.serving.keys`) a visitor without one gets `locked`, which tells nothing of the model but its name; a key
that is typed in there fetches the rest. The key stays in the page's memory.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

from rayloom.features import CategoryState, ColumnState, ImageState, TextState
from rayloom.page import STYLE as HOUSE
from rayloom.page import cut, figure, section
from rayloom.serving.schema import BOOLEAN, DATE, INTEGER, NUMBER, Kind, Schema

KNOWN = 1000
"""The most values of a category that its field offers; others are typed in."""

UNKNOWN = "not known"
"""What stands for null."""

SHOWN_CLASSES = 12

PROMPT = '<div class="soft">Fill in what you know of a record, and the model answers here.</div>'

BUTTON_OPEN = '<button class="main" type="submit">Open</button>'

STYLE = (
    HOUSE
    + """
body { padding-bottom:48px } header { display:flex; flex-wrap:wrap; align-items:center; gap:6px 16px }
header > div:first-child { flex:1 1 320px; min-width:0 } h1 { overflow-wrap:anywhere }
h1 span { font-size:13px; font-weight:500; color:var(--c0); border:1px solid; border-radius:20px; padding:1px 9px;
  margin-left:8px; vertical-align:4px; white-space:nowrap }
main { display:grid; grid-template-columns:minmax(0,1fr) 340px; column-gap:14px; align-items:start }
aside { position:sticky; top:0 } aside section:first-child { border-top:3px solid var(--c0) }
@media (max-width:820px) { main { grid-template-columns:minmax(0,1fr) } aside { position:static } }
label,.name { display:block; padding:0; margin-bottom:3px; font-size:12.5px; color:var(--soft); overflow-wrap:anywhere }
h2 small { font-weight:400; font-size:12.5px; margin-left:4px }
input,select,textarea,button { font:inherit; color:inherit }
input,select,textarea { box-sizing:border-box; width:100%; height:34px; padding:5px 9px; background:var(--page);
  border:1px solid var(--line); border-radius:6px }
textarea { height:auto; min-height:74px; resize:vertical } input[type=file] { font-size:12px; padding:5px }
:focus-visible { outline:2px solid var(--c0); outline-offset:0 }
::placeholder { color:var(--soft); opacity:.75; font-style:italic }
.fields { display:grid; grid-template-columns:repeat(auto-fill,minmax(168px,1fr)); gap:13px 14px; align-items:start }
.field { min-width:0 } .wide { grid-column:1/-1 } .field .free { margin-top:5px }
.says { margin:3px 0 0; font-size:12.5px; overflow-wrap:anywhere } .says:empty { display:none }
.bad input,.bad select,.bad textarea,.bad .either { border-color:var(--c3) } .bad .says,.error { color:var(--c3) }
.new input,.new select,.new textarea { border-color:var(--c1) } .new .says { color:var(--c1) }
.either { display:flex; height:32px; border:1px solid var(--line); border-radius:6px; overflow:hidden; background:var(--page) }
.either label { flex:1 1 auto; margin:0; display:block; cursor:pointer }
.either input { position:absolute; opacity:0; width:1px; height:1px }
.either span { display:block; text-align:center; line-height:32px; padding:0 6px }
.either input:checked + span { background:var(--c0); color:#fff }
.either input:focus-visible + span { outline:2px solid var(--c0); outline-offset:-4px; outline-color:#fff }
.picture { display:flex; gap:10px; align-items:center } .picture input { flex:1 } .picture img { height:64px; min-width:32px;
  max-width:128px; object-fit:contain; image-rendering:pixelated; border:1px solid var(--line); border-radius:6px }
.picture img:not([src]) { display:none }
.bar { display:flex; gap:10px; align-items:center; margin-top:16px; position:sticky; bottom:0; background:var(--card);
  padding:10px 0 2px; border-top:1px solid var(--line) }
button { height:36px; padding:0 16px; border:1px solid var(--line); border-radius:6px; background:none; cursor:pointer }
button.main { background:var(--c0); border-color:var(--c0); color:#fff; font-weight:600 }
button:hover { filter:brightness(1.08) }
button:disabled { opacity:.6; cursor:default } .bar .soft { margin-left:auto; font-size:12px; text-align:right }
.label { font-size:34px; font-weight:600; line-height:1.2; margin:2px 0; overflow-wrap:anywhere }
.label.long { font-size:22px } .chance { margin-top:9px; font-variant-numeric:tabular-nums }
.chance div:first-child { display:flex; justify-content:space-between; gap:8px; overflow-wrap:anywhere }
.track { height:8px; margin-top:3px; border-radius:4px; background:var(--v0); overflow:hidden }
.track div { height:100%; width:0; border-radius:4px; background:var(--v4); transition:width .25s }
.chance.chosen .track div { background:var(--c0) } .chance.chosen div:first-child { font-weight:600 }
dl { display:grid; grid-template-columns:auto 1fr; gap:3px 14px; margin:0 } dt { color:var(--soft) }
dd { margin:0; text-align:right; overflow-wrap:anywhere; font-variant-numeric:tabular-nums } .answer dl { margin-top:14px;
  padding-top:10px; border-top:1px solid var(--line) }
.share { display:flex; height:8px; border-radius:4px; overflow:hidden; background:var(--c0); margin:2px 0 10px }
.share div { background:var(--c1); width:0 } details { margin-top:10px } summary { cursor:pointer; color:var(--soft) }
pre { white-space:pre-wrap; overflow-wrap:anywhere; font-size:12px; margin-top:6px; max-height:240px }
.metrics { margin-top:10px; padding-top:10px; border-top:1px solid var(--line) }
.key { display:flex; gap:6px; align-items:center; flex:0 1 250px } .key label { margin:0; white-space:nowrap }
.door { max-width:420px; margin:12vh auto 0 } .door .key { margin-top:12px } .door button { flex:none; height:34px }
[hidden] { display:none !important }
"""
)

SCRIPT = r"""
"use strict";
let key = "";
const all = (query, within = document) => [...within.querySelectorAll(query)];
const one = (query, within = document) => within.querySelector(query);
function made(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}
const headers = () => key ? {authorization: "Bearer " + key} : {};
const digits = (value) => value.toLocaleString("en", {maximumFractionDigits: value < 10 ? 2 : 1});

// The JSON text of a field's value: text, since a whole number of 64 bits is more than JavaScript's numbers hold.
function read(field) {
  const kind = field.dataset.kind;
  const input = one("[data-value]:checked", field) || one("[data-value]:not([type=radio])", field);
  if (kind === "picture") return JSON.stringify(one("img", field).dataset.bytes || null);
  if (kind === "either") return input.value;
  let text = input.value;
  if (input.tagName === "SELECT") {
    const mode = input.selectedOptions[0].dataset.mode;
    if (mode === "null") return "null";
    if (mode === "other") text = one(".free", field).value;
  } else if (input.validity.badInput) throw kind === "date" ? "expected a whole date" : "expected a number";
  else if (text === "") return "null";
  if (kind === "number") {
    if (text.trim() === "" || !Number.isFinite(Number(text))) throw "expected a finite number";
    return String(Number(text));
  }
  if (kind === "integer") {
    if (!/^\s*[+-]?[0-9]+\s*$/.test(text)) throw "expected a whole number";
    return BigInt(text.trim().replace("+", "")).toString();
  }
  return JSON.stringify(text);
}
function say(field, text, state) {
  field.classList.toggle(state, true);
  one(".says", field).textContent = text;
}
function clear() {
  for (const field of all(".field")) {
    field.classList.remove("bad", "new");
    one(".says", field).textContent = "";
  }
}
const named = (name) => all(".field").find((field) => field.dataset.name === name);
function record() {
  const parts = [];
  let first = null;
  for (const field of all(".field")) {
    try {
      parts.push(JSON.stringify(field.dataset.name) + ": " + read(field));
    } catch (fault) {
      if (typeof fault !== "string") throw fault;
      say(field, fault, "bad");
      first = first || field;
    }
  }
  if (first) one("[data-value]", first).focus();
  return first ? null : "[{" + parts.join(", ") + "}]";
}
function chance(name, value, chosen) {
  const row = made("div", undefined, chosen ? "chance chosen" : "chance"), head = made("div");
  const track = made("div", undefined, "track"), percent = (100 * value).toFixed(value > 0 && value < 0.001 ? 3 : 1);
  head.append(made("span", name), made("span", percent + " %"));
  track.append(made("div"));
  row.append(head, track);
  requestAnimationFrame(() => requestAnimationFrame(() => { track.firstChild.style.width = 100 * value + "%"; }));
  return row;
}
function facts(pairs) {
  const list = made("dl");
  for (const [name, value] of pairs) list.append(made("dt", name), made("dd", value));
  return list;
}
function show(parts, bodies = []) {
  const panel = one(".answer");
  panel.replaceChildren(...parts);
  for (const [title, text] of bodies) {
    const more = made("details");
    more.append(made("summary", title), made("pre", text.length > 5000 ? text.slice(0, 5000) + " …" : text));
    panel.append(more);
  }
}
function answer(reply, taken, bodies) {
  const said = reply.predictions[0], classes = JSON.parse(one("main").dataset.classes), label = String(said.label);
  const chances = said.probabilities ? Object.entries(said.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 12)
    : classes.map((name, index) => [String(name), index ? said.probability : 1 - said.probability]);
  const size = label.length > 14 ? "label long" : "label";
  const parts = [made("div", one("main").dataset.label || "label", "soft"), made("div", label, size)];
  for (const [name, value] of chances) parts.push(chance(name, value, name === label));
  const unseen = said.unseen || [], pairs = [["version", String(reply.model.version)], ["latency", digits(taken) + " ms"]];
  if (unseen.length) pairs.push(["unseen", unseen.join(", ")]);
  for (const name of unseen) if (named(name)) say(named(name), "training did not know this value", "new");
  show([...parts, facts(pairs)], bodies);
}
function refuse(status, error, bodies) {
  const field = error.field !== null && named(error.field);
  if (status === 401) one(".key input").focus();
  if (field) {
    say(field, error.message.replace("field '" + error.field + "': ", ""), "bad");
    one("[data-value]", field).focus();
  }
  show([made("div", status ? "Error " + status : "No answer", "label long error"), made("div", error.message)], bodies);
}
async function predict(event) {
  event.preventDefault();
  clear();
  const body = record(), button = one("button.main");
  if (body === null) return show([made("div", "Some fields are to be corrected.", "error")]);
  button.disabled = true;
  let status = 0, text = "";
  try {
    const began = performance.now();
    const reply = await fetch("predict", {method: "POST", body, headers: {"content-type": "application/json", ...headers()}});
    status = reply.status;
    text = await reply.text();
    const taken = performance.now() - began, bodies = [["request", body], ["reply", text]];
    if (reply.ok) answer(JSON.parse(text), taken, bodies);
    else refuse(status, JSON.parse(text).error, bodies);
  } catch (fault) {
    refuse(status, {message: status ? "the reply is not what this page expects" : "the server cannot be reached", field: null},
      text ? [["reply", text]] : []);
  } finally {
    button.disabled = false;
  }
}
function picture(field) {
  const input = one("input", field), image = one("img", field), file = input.files[0];
  if (!file) return;
  const reader = new FileReader();
  reader.onload = () => {
    image.dataset.bytes = reader.result.slice(reader.result.indexOf(",") + 1);
    image.src = "data:image/png;base64," + image.dataset.bytes;
  };
  reader.readAsDataURL(file);
}
function reset(empty) {
  one("form").reset();
  for (const field of all(".field")) {
    const input = one("[data-value]", field), image = one("img", field);
    if (image) {
      image.dataset.bytes = empty ? "" : image.dataset.example || "";
      if (image.dataset.bytes) image.src = "data:image/png;base64," + image.dataset.bytes;
      else image.removeAttribute("src");
    } else if (empty && input.tagName === "SELECT") one("[data-mode=null]", input).selected = true;
    else if (empty && input.type === "radio") one("[value=null]", field).checked = true;
    else if (empty) input.value = "";
    if (one(".free", field)) other(input);
  }
  clear();
}
function other(select) {
  one(".free", select.closest(".field")).hidden = select.selectedOptions[0].dataset.mode !== "other";
}
function spread() {
  for (const part of all("[data-share]")) part.style.width = 100 * Number(part.dataset.share) + "%";
}
const fields = (within) => JSON.stringify(all(".field", within).map((field) => [field.dataset.name, field.dataset.kind]));

// Takes what another plan changes from the page as it is now.
async function renew() {
  const reply = await fetch("./", {headers: headers()});
  if (!reply.ok) return;
  const page = new DOMParser().parseFromString(await reply.text(), "text/html");
  if (!one(".plan", page)) return;
  const isOther = fields(page) !== fields(document);
  for (const query of ["h1", ".below", ".plan", ".card"]) one(query).replaceWith(one(query, page));
  Object.assign(one("main").dataset, one("main", page).dataset);
  if (isOther) {
    one("form").replaceWith(one("form", page));
    bind();
  }
  spread();
}
async function follow() {
  const plan = one(".plan");
  try {
    if (!document.hidden) {
      const reply = await fetch("plan", {headers: headers()});
      one(".lost").hidden = true;
      const isOther = reply.ok && JSON.stringify(await reply.json()) !== JSON.stringify(JSON.parse(plan.dataset.plan));
      if (isOther) await renew();
    }
  } catch {
    one(".lost").hidden = false;
  }
  setTimeout(follow, 3000);
}
async function open(event) {
  event.preventDefault();
  const says = one(".says");
  says.textContent = "";
  try {
    const reply = await fetch("./", {headers: headers()});
    if (!reply.ok) throw (await reply.json()).error.message;
    const page = new DOMParser().parseFromString(await reply.text(), "text/html");
    for (const script of all("script", page)) script.remove();
    document.title = page.title;
    document.body.replaceChildren(...page.body.childNodes);
    one(".key input").value = key;
    start();
  } catch (fault) {
    says.textContent = typeof fault === "string" ? fault : "the server cannot be reached";
  }
}
function start() {
  one(".key input").addEventListener("input", (event) => { key = event.target.value.trim(); });
  if (one(".door")) return one("form").addEventListener("submit", open);
  bind();
  spread();
  if (one(".plan")) setTimeout(follow, 3000);
}
function bind() {
  one("form").addEventListener("submit", predict);
  one(".example").addEventListener("click", () => reset(false));
  one(".empty").addEventListener("click", () => reset(true));
  for (const field of all(".field")) {
    const input = one("[data-value]", field);
    if (one(".free", field)) input.addEventListener("change", () => other(input));
    if (field.dataset.kind === "picture") input.addEventListener("change", () => picture(field));
  }
  reset(false);
}
start();
"""


def html(schema: Schema, card: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """The page.

    Args:
        schema: the model's.
        card: what GET /model answers: "model" {name, version}, "dataset", "classes", "metrics", "example" (a golden record or
            None), and "label" (the label's name) where it is known.
        plan: what GET /plan answers; {} where there is none.
    """
    name, told = str(card["model"]["name"]), str(card.get("label") or "")
    title = f"<h1>{escape(name)}<span>version {escape(str(card['model']['version']))}</span></h1>"
    what = f"predicts <b>{escape(told)}</b> from " if told else ""
    below = f'<div class="soft below">{what}{_count(len(schema.kinds), "field")}</div>'
    aside = _named(section(PROMPT), 'class="answer" aria-live="polite"')
    shown = f'class="plan" aria-live="polite" data-plan="{escape(json.dumps(plan))}"'
    aside += _named(section(_who_answers(plan), "Who answers"), shown) + _named(section(_card(card), "Model"), 'class="card"')
    body = (
        f"<header><div>{title}{below}</div>{_key()}</header>"
        f'<main data-label="{escape(told)}" data-classes="{escape(json.dumps(card["classes"]))}">'
        f"{_form(schema, card.get('example') or {})}<aside>{aside}</aside></main>"
    )
    return _document(name, body)


def locked(name: str) -> str:
    """The page for who has no key yet.

    Args:
        name: the model's.
    """
    said = '<p class="soft">This model answers those who have an API key.</p>'
    form = f'<form autocomplete="off">{_key(BUTTON_OPEN)}<p class="says error" role="alert"></p></form>'
    return _document(name, f'<div class="door"><h1>{escape(name)}</h1>{section(said + form)}</div>')


def policy() -> str:
    """The page's Content-Security-Policy: https://www.w3.org/TR/CSP3/"""
    return (
        f"default-src 'none'; script-src '{_hash(SCRIPT)}'; style-src '{_hash(STYLE)}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def headers() -> list[tuple[bytes, bytes]]:
    """The headers of a reply that is the page; that nothing may frame it, only a header can say."""
    return [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", f"{policy()}; frame-ancestors 'none'".encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    ]


@cache
def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _document(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head><body>'
        f"{body}<noscript>{section('The form needs JavaScript; POST /predict does not.')}</noscript>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _named(section: str, attributes: str) -> str:
    return section.replace("<section>", f"<section {attributes}>", 1)


def _key(button: str = "") -> str:
    """The field for a key: outside of what a browser would store."""
    field = '<input id="key" type="password" autocomplete="off" spellcheck="false" placeholder="none">'
    return f'<div class="key"><label for="key">API key</label>{field}{button}</div>'


def _form(schema: Schema, example: Mapping[str, Any]) -> str:
    fields = "".join(
        _field(place, name, kind, schema.columns[name], example.get(name))
        for place, (name, kind) in enumerate(schema.kinds.items())
    )
    buttons = (
        '<button class="main" type="submit">Predict</button><button class="example" type="button">Example</button>'
        '<button class="empty" type="button">Clear</button><span class="soft">An empty field is sent as null: not known.</span>'
    )
    note = "filled with a record that the model was checked with" if example else ""
    form = f'<form novalidate autocomplete="off"><div class="fields">{fields}</div><div class="bar">{buttons}</div></form>'
    return section(form, "Record").replace("</h2>", f" <small>{note}</small></h2>", 1)


def _field(place: int, name: str, kind: Kind, column: ColumnState, value: Any) -> str:
    """A field: its name, an input that has the value, and room for what is wrong with it."""
    id, shape = f"f{place}", _shape(kind, column)
    given = f'id="{id}" data-value aria-describedby="s{place}"'
    match shape:
        case "either":
            content = _either(id, value)
        case "picture":
            content = _picture(given, value)
        case _ if isinstance(column, CategoryState) and column.values:
            content = _choice(given, column.values[:KNOWN], value)
        case _ if isinstance(column, TextState):
            content = f'<textarea {given} rows="4" placeholder="{UNKNOWN}">{escape(_text(value))}</textarea>'
        case _:
            content = f'<input {given} {_type(shape)} placeholder="{UNKNOWN}" value="{escape(_shown(kind, value))}">'
    wide = " wide" if isinstance(column, TextState | ImageState) else ""
    label = f'<span class="name" id="n{place}">{escape(name)}</span>' if shape == "either" else ""
    label = label or f'<label for="{id}">{escape(name)}</label>'
    says = f'<p class="says" id="s{place}"></p>'
    return f'<div class="field{wide}" data-name="{escape(name)}" data-kind="{shape}">{label}{content}{says}</div>'


def _shape(kind: Kind, column: ColumnState) -> str:
    """How the script reads a field."""
    if isinstance(column, ImageState):
        return "picture"
    return {NUMBER: "number", INTEGER: "integer", BOOLEAN: "either", DATE: "date"}.get(kind, "text")


def _type(shape: str) -> str:
    return {"number": 'type="number" step="any"', "integer": 'type="number" step="1"', "date": 'type="date"'}.get(
        shape, 'type="text"'
    )


def _text(value: Any) -> str:
    """A value of a record as an input holds it: 1258.0 as 1258, for who types does so, too."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _shown(kind: Kind, value: Any) -> str:
    """As `_text`; of a timestamp its date, as the model takes it."""
    if kind is not DATE or value is None or kind.fault(value):
        return _text(value)
    return kind.convert([value], {type(value)})[0].isoformat()


def _choice(given: str, values: Sequence[str], value: Any) -> str:
    """The values that training knew, null, and a text input for others."""
    text, found = _text(value), value is not None and _text(value) in values
    other = value is not None and not found
    options = "".join(_option(escape(known), f'value="{escape(known)}"', found and known == text) for known in values)
    options += _option("another …", 'data-mode="other" value=""', other) + _option(
        UNKNOWN, 'data-mode="null" value=""', value is None
    )
    free = f'<input class="free" type="text" aria-label="another value" value="{escape(text if other else "")}" hidden>'
    return f"<select {given}>{options}</select>{free}"


def _option(text: str, attributes: str, selected: bool) -> str:
    return f"<option {attributes}{' selected' if selected else ''}>{text}</option>"


def _either(id: str, value: Any) -> str:
    buttons = "".join(
        f'<label><input type="radio" name="{id}" data-value value="{said}"{" checked" if json.dumps(value) == said else ""}>'
        f"<span>{shown}</span></label>"
        for said, shown in (("true", "true"), ("false", "false"), ("null", UNKNOWN))
    )
    return f'<div class="either" role="radiogroup" aria-labelledby="n{id[1:]}" aria-describedby="s{id[1:]}">{buttons}</div>'


def _picture(given: str, value: Any) -> str:
    example = escape(value) if isinstance(value, str) else ""
    return f'<div class="picture"><img alt="" data-example="{example}"><input {given} type="file" accept="image/*"></div>'


def _who_answers(plan: Mapping[str, Any]) -> str:
    if not plan:
        return ""
    stable, candidate, share = plan.get("stable"), plan.get("candidate"), float(plan.get("share") or 0)
    part = f"{100 * share:.3g} %"
    said = f"Version {stable} answers {100 - 100 * share:.3g} % of the requests, version {candidate} {part}."
    if candidate is None:
        said = f"Version {stable} answers every request."
    elif plan.get("strategy") == "shadow":
        said = f"Version {stable} answers every request. Version {candidate} answers {part} of them, too, to be compared."
    bar = "" if candidate is None else f'<div class="share"><div data-share="{share}"></div></div>'
    facts = {"strategy": plan.get("strategy"), "state": plan.get("state"), "step": plan.get("step") or None}
    reason = f'<p class="soft">{escape(str(plan["reason"]))}</p>' if plan.get("reason") else ""
    lost = '<p class="error lost" hidden>The server does not answer just now.</p>'
    return f"{bar}<div>{escape(said)}</div>{reason}<details><summary>rollout</summary>{_facts(facts)}</details>{lost}"


def _card(card: Mapping[str, Any]) -> str:
    classes = list(map(str, card["classes"]))
    more = f" and {len(classes) - SHOWN_CLASSES} more" if len(classes) > SHOWN_CLASSES else ""
    facts = _facts({"dataset": card.get("dataset"), "classes": ", ".join(classes[:SHOWN_CLASSES]) + more})
    measured = {cut(name.replace("_", " "), 60): figure(value) for name, value in (card.get("metrics") or {}).items()}
    return facts + (f'<div class="metrics">{_facts(measured)}</div>' if measured else "")


def _facts(facts: Mapping[str, Any]) -> str:
    """A list of names and values, without those that are None."""
    pairs = (f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value is not None)
    return f"<dl>{''.join(pairs)}</dl>"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
