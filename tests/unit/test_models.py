"""Model families: found by name, and what a family cannot use is refused before a worker starts."""

import pytest

from rayloom import config, models
from rayloom.errors import ConfigError
from rayloom.features import CategoryState, FeatureState, ImageState, TextState
from rayloom.models import tabular

SHADE = CategoryState(values=["blue", "red"])
BODY = TextState(tokenizer="{}", max_tokens=4, vocabulary=4)
FACE = ImageState(height=2, width=2, channels=1, resize=False, mean=[0.5], deviation=[0.5])


def state_of(classes: list = [0, 1], **columns) -> FeatureState:
    return FeatureState(label="y", columns={"shade": SHADE, **columns}, classes=classes)


def refusal(state: FeatureState, family: str = "tabular") -> str:
    with pytest.raises(ConfigError) as caught:
        models.require(config.Model(family=family), state)
    return str(caught.value)


@pytest.mark.parametrize("classes", [[0, 1], ["no", "yes"]])
def test_two_classes_are_accepted(classes):
    models.require(config.Model(), state_of(classes))


def test_more_classes_than_two_are_refused_by_the_label():
    said = refusal(state_of(["business", "sport", "tech"]))
    assert said.startswith("features.label: 'y' has 3 classes ('business', 'sport', 'tech'), and training tells two apart")


@pytest.mark.parametrize(("column", "name"), [(BODY, "body"), (FACE, "face")])
def test_text_and_images_are_refused_by_name(column, name):
    assert refusal(state_of(**{name: column})).startswith(
        f"features.columns has {name}, text or images, and the family tabular"
    )


def test_what_a_family_refuses_is_not_built():
    with pytest.raises(ConfigError, match="has 3 classes"):
        models.build(config.Model(), state_of(["a", "b", "c"]))


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("tabula", "unknown family 'tabula'; did you mean 'tabular'? Known: tabular."),
        ("no_such_package:build", "'no_such_package:build' cannot be imported"),
        (f"{__name__}:nothing", "cannot be imported"),
    ],
)
def test_a_family_that_cannot_be_found_is_refused(family, said):
    assert said in refusal(state_of(), family)


def test_a_users_own_family_judges_its_columns_for_itself():
    models.require(config.Model(family=f"{tabular.__name__}:build"), state_of(body=BODY))


def test_a_users_own_family_meets_the_same_loop():
    assert "training tells two apart" in refusal(state_of(["a", "b", "c"]), f"{tabular.__name__}:build")
