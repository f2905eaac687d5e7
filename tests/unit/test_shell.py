"""The lines for the shell: what they ask is what a client has to send."""

import json
import shlex

import pytest

from rayloom import config
from rayloom.serving.shell import SHOWN_RECORD, how_to_ask

URL = "https://127.0.0.1:8000"
SECURE = config.Tls(certificate="/a folder/front.crt", key="/front.key")
HOSTILE = {"it's": "$(rm -rf ~) \"é\" `ls` \\ & ; 'x'", "empty": None}


def line(begins: str, settings: config.Serve, example: dict | None) -> str:
    (found,) = [text for text in how_to_ask(settings, URL, example).splitlines() if text.strip().startswith(begins)]
    return found.strip().removeprefix(begins).strip()


@pytest.mark.parametrize("record", [HOSTILE, {"distance": 500}])
def test_curl_sends_the_record_as_it_is(record):
    *words, flag, given = shlex.split(line("ask", config.Serve(), record))
    assert (words, flag, json.loads(given)) == (["curl", "-s", f"{URL}/predict"], "-d", [record])


def test_curl_trusts_the_certificate_and_sends_the_key():
    words = shlex.split(line("ask", config.Serve(host="0.0.0.0", tls=SECURE), {"distance": 500}))
    assert words[:6] == ["curl", "-s", "--cacert", "/a folder/front.crt", "-H", "Authorization: Bearer $KEY"]


def test_a_key_is_named_where_one_is_needed():
    assert "rayloom keys create" in how_to_ask(config.Serve(host="0.0.0.0"), URL, None)
    assert "rayloom keys create" not in how_to_ask(config.Serve(), URL, None)


@pytest.mark.parametrize("record", [None, {"text": "x" * SHOWN_RECORD}], ids=["none", "long"])
def test_a_record_that_fits_no_line_is_to_be_looked_up(record):
    said = how_to_ask(config.Serve(), URL, record)
    assert "-d @records.json" in said and f"{URL}/model shows a record" in said and len(said) < 500


def test_the_page_is_where_the_application_is():
    assert line("page", config.Serve(), None) == f"{URL}/"
