"""Several models on one cluster: each has its route, below which all its paths lie."""

import pytest

from rayloom import config
from rayloom.errors import ConfigError, ServingError
from rayloom.serving import front
from rayloom.serving.application import Application
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions
from tests.malformed import inputs
from tests.unit.test_application import FIELDS, GOOD, INFER, Client


@pytest.fixture
def at_toys(toy_bundle) -> Client:
    """A replica of an application whose route is /toys/small."""
    versions = Versions("toy", config.Serve(route="/toys/small"))
    versions.add(3, Predictor(toy_bundle))
    versions.plan = Plan(stable=3)
    return Client(Application(versions))


@pytest.mark.parametrize("path", ["/", "/model", "/openapi.json", "/readyz", "/metrics", "/v2", "/v2/models/toy"])
def test_pages_lie_below_the_route(at_toys, path):
    assert at_toys.get(f"/toys/small{path}").status == 200


def test_records_are_answered_below_the_route(at_toys):
    assert at_toys.post("/toys/small/predict", [GOOD]).status == 200


def test_the_inference_protocol_lies_below_the_route(at_toys):
    assert at_toys.post(f"/toys/small{INFER}", {"inputs": inputs(FIELDS)}).json()["model_name"] == "toy"


def test_the_bare_route_leads_to_the_page(at_toys):
    said = at_toys.get("/toys/small")
    assert (said.status, said.headers[b"location"]) == (307, b"/toys/small/")


def test_the_document_names_the_route(at_toys):
    assert at_toys.get("/toys/small/openapi.json").json()["servers"] == [{"url": "/toys/small"}]


@pytest.mark.parametrize("route", ["toys", "/toys/", "//", "/-/healthz", "/a b", "", "/toys?x"])
def test_what_is_no_route_is_refused(toy_pipeline, route):
    with pytest.raises((ConfigError, ValueError), match="route"):
        toy_pipeline({"serve": {"route": route}})


TAKEN = {
    "another model": (8000, {"news": "/"}, "where news answers on this cluster; give toy another, such as /toy"),
    "another port": (8100, {}, "answers for all its models on port 8100"),
    "another route before": (8000, {"toy": "/old"}, "toy answers at /old on this cluster"),
}


@pytest.mark.parametrize("case", TAKEN)
def test_a_route_that_is_not_to_be_had_is_refused(toy_pipeline, case):
    port, routes, sentence = TAKEN[case]
    with pytest.raises(ServingError, match=sentence):
        front.require(toy_pipeline(), port, routes)


@pytest.mark.parametrize("routes", [{}, {"toy": "/"}, {"news": "/news"}, {"gone": None}])
def test_a_route_of_its_own_is_given(toy_pipeline, routes):
    front.require(toy_pipeline(), 8000, routes)
