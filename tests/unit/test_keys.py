"""API keys: what the file holds, who is let in and how often, and what a running replica learns of a change."""

import argparse
import json
import logging
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from rayloom import cli
from rayloom.commands import keys as command
from rayloom.errors import InvalidRecords, ServingError
from rayloom.serving import keys
from rayloom.serving.keys import Keys

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NOW = BEGAN.timestamp()


@pytest.fixture
def path(tmp_path):
    return keys.path_of(tmp_path, "toy")


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def refusal(known: Keys, headers: dict[bytes, bytes], now: float = NOW) -> keys.Refused:
    with pytest.raises(InvalidRecords) as caught:
        known.check(headers, now)
    return caught.value


def allowed(known: Keys, key: str, now: float, most: int = 1000) -> int:
    """Requests of one moment until one is refused."""
    for count in range(most):
        try:
            known.check(bearer(key), now)
        except keys.Refused:
            return count
    return most


def test_a_key_has_an_id_and_32_random_bytes(path):
    made = [keys.create(path, name, BEGAN) for name in ("one", "two")]
    assert all(re.fullmatch(r"rl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", key) and len(key) == keys.LENGTH for key in made)
    assert made[0][-43:] != made[1][-43:]


def test_the_file_is_its_owners_and_holds_no_key(path):
    key = keys.create(path, "one", BEGAN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key[-43:] not in path.read_text()


def test_the_file_stays_its_owners_when_it_is_replaced(path):
    keys.create(path, "one", BEGAN)
    path.chmod(0o644)
    keys.create(path, "two", BEGAN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_left_beside_the_file(path):
    keys.create(path, "one", BEGAN)
    keys.revoke(path, "one")
    assert sorted(os.listdir(path.parent)) == ["toy-keys.json", "toy-keys.lock"]


def test_a_write_that_fails_keeps_the_old_file(path, monkeypatch):
    keys.create(path, "one", BEGAN)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        keys.create(path, "two", BEGAN)
    assert path.read_bytes() == before and len(os.listdir(path.parent)) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "one"}, "has a key 'one' already; revoke it first"),
        ({"name": "a b"}, "The key 'a b' has no fit name"),
        ({"name": "two", "rate": 0.0}, "The key 'two' has no fit rate"),
        ({"name": "two", "rate": float("nan")}, "The key 'two' has no fit rate"),
        ({"name": "two", "burst": 0.5}, "The key 'two' has no fit burst"),
    ],
)
def test_what_makes_no_key(path, arguments, said):
    keys.create(path, "one", BEGAN)
    with pytest.raises(ServingError, match=said):
        keys.create(path, now=BEGAN, **arguments)
    assert [key.name for key in keys.read(path)] == ["one"]


def test_revoking_an_unknown_key_names_the_nearest(path):
    keys.create(path, "dashboard", BEGAN)
    with pytest.raises(ServingError, match="no key 'dashbord'; did you mean 'dashboard'"):
        keys.revoke(path, "dashbord")


@pytest.mark.parametrize("text", ["", "[]", '{"keys": [{"name": "one"}]}', '{"keys": [], "more": 1}', '{"keys"'])
def test_a_file_that_is_none_is_refused(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ServingError, match=r"toy-keys\.json: .*remove the file and create its keys again"):
        Keys(path)


def test_the_error_of_a_broken_file_tells_no_hash(path):
    keys.create(path, "one", BEGAN)
    content = json.loads(path.read_text())
    content["keys"][0]["hash"] = "secret" * 10
    path.write_text(json.dumps(content))
    with pytest.raises(ServingError) as caught:
        Keys(path)
    assert "keys.0.hash" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "BEARER  {} "])
def test_a_bearer_token_is_a_key(path, form):
    key = keys.create(path, "one", BEGAN)
    assert Keys(path).check({b"authorization": form.format(key).encode()}, NOW) == "one"


def test_x_api_key_is_a_key_also_beside_a_proxys_authorization(path):
    key = keys.create(path, "one", BEGAN)
    assert Keys(path).check({b"x-api-key": key.encode(), b"authorization": b"Basic eDp5"}, NOW) == "one"


def test_each_key_has_its_own_name(path):
    made = {name: keys.create(path, name, BEGAN) for name in ("one", "two", "three")}
    known = Keys(path)
    assert {name: known.check(bearer(key), NOW) for name, key in made.items()} == {name: name for name in made}


@pytest.mark.parametrize("headers", [{}, {b"authorization": b""}, {b"authorization": b"Basic eDp5"}])
def test_a_request_without_a_key_is_told_how_to_send_one(path, headers):
    error = refusal(Keys(path), headers)
    assert (error.status, error.headers) == (401, [(b"www-authenticate", b'Bearer realm="rayloom"')])
    assert "'Authorization: Bearer KEY'" in error.message


@pytest.mark.parametrize(
    "change",
    [
        lambda key: "",
        lambda key: key[:-1],
        lambda key: key + "A",
        lambda key: key[:-2] + ("AA" if key[-2:] != "AA" else "BB"),
        lambda key: key[:4] + ("0" if key[4] != "0" else "1") + key[5:],
        lambda key: key.upper(),
        lambda key: "rl_" + "é" * 28,
        lambda key: "A" * 100_000,
    ],
)
def test_another_key_is_refused(path, change):
    key = keys.create(path, "one", BEGAN)
    error = refusal(Keys(path), {b"x-api-key": change(key).encode()})
    assert error.status == 401 and dict(error.headers)[b"www-authenticate"].endswith(b'error="invalid_token"')


def test_the_id_of_one_key_with_the_secret_of_another_is_refused(path):
    one, two = (keys.create(path, name, BEGAN) for name in ("one", "two"))
    assert refusal(Keys(path), bearer(one[:16] + two[16:])).status == 401


def test_a_refusal_does_not_repeat_the_key(path):
    key = keys.create(path, "one", BEGAN)
    assert key[-44:-1] not in repr(refusal(Keys(path), bearer(key[:-1] + "_")))


def test_a_key_holds_until_it_expires(path):
    key = keys.create(path, "one", BEGAN, expires=timedelta(days=30))
    known, end = Keys(path), NOW + 30 * 86400
    assert known.check(bearer(key), end - 1) == "one"
    error = refusal(known, bearer(key), end)
    assert (error.status, error.message) == (401, "the API key 'one' has expired")


def test_a_burst_is_let_through_and_then_the_rate(path):
    key = keys.create(path, "one", BEGAN, rate=10.0, burst=25.0)
    known = Keys(path)
    assert [allowed(known, key, NOW + after) for after in (0, 0, 0.5, 1.0, 100.0)] == [25, 0, 5, 5, 25]


def test_over_a_long_time_the_rate_is_kept(path):
    key = keys.create(path, "one", BEGAN, rate=3.0, burst=1.0)
    known = Keys(path)
    assert sum(allowed(known, key, NOW + step / 128, most=1) for step in range(128 * 20)) == 60


@pytest.mark.parametrize(("rate", "after"), [(100.0, 1), (0.25, 4), (0.3, 4)])
def test_who_asks_too_often_is_told_when_to_come_again(path, rate, after):
    key = keys.create(path, "one", BEGAN, rate=rate, burst=1.0)
    known = Keys(path)
    known.check(bearer(key), NOW)
    error = refusal(known, bearer(key))
    assert (error.status, error.headers) == (429, [(b"retry-after", b"%d" % after)])
    assert known.check(bearer(key), NOW + after) == "one"


def test_one_key_does_not_use_up_anothers_rate(path):
    one, two = (keys.create(path, name, BEGAN, burst=2.0) for name in ("one", "two"))
    known = Keys(path)
    assert (allowed(known, one, NOW), allowed(known, two, NOW)) == (2, 2)


def test_a_wrong_secret_uses_up_nothing(path):
    key = keys.create(path, "one", BEGAN, burst=1.0)
    known = Keys(path)
    refusal(known, bearer(key[:-1] + ("A" if key[-1] != "A" else "E")))
    assert known.check(bearer(key), NOW) == "one"


WRONG = bearer("rl_" + "0" * 12 + "_" + "A" * 43)


def tried(known: Keys, now: float, times: int) -> list[int]:
    """What so many wrong keys of one moment are told."""
    return [refusal(known, WRONG, now).status for _ in range(times)]


def test_who_tries_keys_is_told_to_wait_after_some_a_minute(path):
    known, most = Keys(path), keys.WRONG_TRIES
    assert tried(known, NOW, most + 2) == [401] * most + [429] * 2
    assert tried(known, NOW + 60 / most, 2) == [401, 429]
    assert tried(known, NOW + 600, most + 1) == [401] * most + [429]


def test_who_tries_keys_is_told_for_how_long(path):
    known = Keys(path)
    tried(known, NOW, keys.WRONG_TRIES)
    error = refusal(known, WRONG)
    assert error.headers == [(b"retry-after", b"2")] and error.message.endswith(
        "too many wrong ones were tried; try again after 2 s"
    )


def test_good_keys_go_on_working_while_others_are_tried(path):
    key = keys.create(path, "one", BEGAN)
    known = Keys(path)
    tried(known, NOW, 100)
    assert known.check(bearer(key), NOW) == "one"


def test_no_key_is_no_try(path):
    known = Keys(path)
    assert [refusal(known, {}).status for _ in range(100)] == [401] * 100
    assert refusal(known, WRONG).status == 401


def test_different_wrong_keys_take_no_memory(path):
    """One count for all of them: nothing is kept by key."""
    known = Keys(path)
    kept = set(vars(known))
    for place in range(100):
        refusal(known, bearer(f"rl_{place:012x}_" + "A" * 43))
    assert set(vars(known)) == kept and known.callers == {}


def test_the_log_tells_of_tried_keys_once_until_they_stop(path, caplog):
    known, most = Keys(path), keys.WRONG_TRIES
    counted = []
    with caplog.at_level(logging.WARNING, "rayloom.serving"):
        for now in (NOW, NOW + 5, NOW + 10, NOW + 600):
            tried(known, now, most + 5)
            counted.append(len(caplog.records))
    assert counted == [1, 1, 1, 2] and f"more than {most} wrong API keys" in caplog.text


def test_replicas_share_a_rate(path):
    key = keys.create(path, "one", BEGAN, rate=10.0, burst=40.0)
    known = Keys(path, replicas=4)
    assert [allowed(known, key, NOW + after) for after in (0, 2)] == [10, 5]


def test_more_replicas_share_a_rate_anew(path):
    key = keys.create(path, "one", BEGAN, rate=8.0)
    known = Keys(path, replicas=1)
    known.check(bearer(key), NOW)
    known.replicas = 4
    assert allowed(known, key, NOW + keys.LOOK_S) == 2


def test_a_clock_that_is_set_back_locks_nobody_out(path):
    key = keys.create(path, "one", BEGAN, rate=10.0, burst=10.0)
    known = Keys(path)
    allowed(known, key, NOW + 3600)
    assert [allowed(known, key, NOW + after) for after in (0, 1)] == [0, 10]


def test_a_revoked_key_is_refused_within_a_second(path):
    key = keys.create(path, "one", BEGAN)
    known = Keys(path)
    known.check(bearer(key), NOW)
    keys.revoke(path, "one")
    assert refusal(known, bearer(key), NOW + keys.LOOK_S).status == 401


def test_a_new_key_is_taken_within_a_second(path):
    known = Keys(path)
    refusal(known, {})
    key = keys.create(path, "one", BEGAN)
    assert known.check(bearer(key), NOW + keys.LOOK_S) == "one"


def test_the_file_is_looked_at_once_a_second(path):
    known = Keys(path)
    refusal(known, {})
    key = keys.create(path, "one", BEGAN)
    assert refusal(known, bearer(key), NOW + keys.LOOK_S - 0.01).status == 401


def test_no_file_means_no_key(path):
    key = keys.create(path, "one", BEGAN)
    known = Keys(path)
    path.unlink()
    assert refusal(known, bearer(key)).status == 401


def test_a_new_key_gives_the_others_no_new_burst(path):
    key = keys.create(path, "one", BEGAN, rate=1.0, burst=5.0)
    known = Keys(path)
    allowed(known, key, NOW)
    keys.create(path, "two", BEGAN)
    assert allowed(known, key, NOW + keys.LOOK_S) == 1


def test_a_broken_file_changes_nothing_until_it_is_mended(path, caplog):
    key = keys.create(path, "one", BEGAN)
    known, good = Keys(path), path.read_text()
    path.write_text("{")
    with caplog.at_level(logging.ERROR, "rayloom.serving"):
        assert known.check(bearer(key), NOW) == "one"
    assert "the keys stay as they were" in caplog.text
    path.write_text(good.replace('"one"', '"uno"'))
    assert known.check(bearer(key), NOW + keys.LOOK_S) == "uno"


@pytest.mark.parametrize(
    ("given", "host", "needed"),
    [
        (None, "127.0.0.1", False),
        (None, "127.8.8.8", False),
        (None, "::1", False),
        (None, "localhost", False),
        (None, "0.0.0.0", True),
        (None, "::", True),
        (None, "10.0.0.5", True),
        (None, "models.example.org", True),
        (None, "", True),
        (True, "127.0.0.1", True),
        (False, "0.0.0.0", False),
    ],
)
def test_where_others_can_ask_keys_are_needed(given, host, needed):
    assert keys.required(given, host) is needed


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "-1d", "1.5h", "30 d", "1y", "30d\n", "100000w"])
def test_what_is_no_time_span(text):
    with pytest.raises(ValueError, match="is no time span; write 90m, 12h, 30d or 4w"):
        keys.duration(text)


@pytest.fixture
def rayloom(tmp_path, toy_data, capsys):
    """Runs `rayloom keys …` and returns what it printed to stdout and to stderr."""
    file = tmp_path / "toy.yaml"
    file.write_text(yaml.safe_dump(toy_data({"storage": {"root": str(tmp_path)}})))

    def run(*words: str) -> tuple[str, str]:
        parser = argparse.ArgumentParser()
        command.add(parser.add_subparsers())
        parsed = parser.parse_args(["keys", *words, "--config", str(file)])
        with cli.errors_as_exit_codes():
            parsed.run(parsed)
        printed = capsys.readouterr()
        return printed.out, printed.err

    return run


def test_a_created_key_is_all_that_stdout_has(rayloom, path):
    out, err = rayloom("create", "dashboard", "--rate", "20", "--expires", "30d")
    assert Keys(path).check(bearer(out.rstrip("\n")), datetime.now(UTC).timestamp()) == "dashboard"
    assert "shown only now" in err and out.strip() not in err


def test_a_created_key_is_as_asked(rayloom, path):
    rayloom("create", "dashboard", "--rate", "20", "--expires", "30d")
    (key,) = keys.read(path)
    assert (key.rate, key.burst, key.expires - key.created) == (20.0, 20.0, timedelta(days=30))


def test_keys_are_listed_without_their_secrets(rayloom, path):
    key = keys.create(path, "dashboard", BEGAN, rate=20.0, expires=timedelta(days=30))
    header, line = rayloom("list")[0].splitlines()
    assert re.split(r"  +", header) == ["name", "begins with", "requests/s", "at once", "created (UTC)", "expires (UTC)"]
    assert re.split(r"  +", line)[:5] == ["dashboard", key[:15], "20", "20", "2026-01-01 00:00"]
    assert "2026-01-31 00:00" in line


def test_keys_are_listed_as_json(rayloom, path):
    keys.create(path, "dashboard", BEGAN)
    (listed,) = json.loads(rayloom("list", "--json")[0])
    assert set(listed) == {"name", "id", "rate", "burst", "created", "expires"}


def test_a_list_without_keys_says_how_to_make_one(rayloom):
    assert "rayloom keys create NAME" in rayloom("list")[0]


def test_an_expired_key_is_listed_as_such(rayloom, path):
    keys.create(path, "old", datetime(2020, 1, 1, tzinfo=UTC), expires=timedelta(days=1))
    assert "2020-01-02 00:00 (over)" in rayloom("list")[0]


def test_a_key_is_revoked(rayloom, path):
    keys.create(path, "dashboard", BEGAN)
    assert "Revoked 'dashboard'" in rayloom("revoke", "dashboard")[0]
    assert keys.read(path) == []


@pytest.mark.parametrize(
    "words", [("revoke", "nobody"), ("create", "a b"), ("create", "x", "--rate", "-1"), ("create", "x", "--expires", "1y")]
)
def test_a_mistake_ends_with_code_2(rayloom, words):
    with pytest.raises(SystemExit) as ended:
        rayloom(*words)
    assert ended.value.code == 2


def test_the_commands_need_no_arrow():
    program = "import sys, rayloom.serving.keys; print([name for name in ('ray', 'torch', 'pyarrow') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True).stdout.strip() == "[]"
