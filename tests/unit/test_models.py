"""Model families: found by name, what a family cannot use is refused before a worker starts, and logits by class."""

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from rayloom import config, models
from rayloom.bundle import BundleConfig
from rayloom.errors import ConfigError
from rayloom.features import CategoryState, FeatureState, ImageState, NumberState, TextState
from rayloom.models import tabular
from tests.unit.families import BERT, logits_of, logits_row_by_row

NUMBER = NumberState(center=0.0, spread=1.0, impute=0.0, flag=True)
SHADE = CategoryState(values=["blue", "red"])
BODY = TextState(tokenizer="{}", max_tokens=8, vocabulary=50)
FACE = ImageState(height=6, width=4, channels=3, resize=False, mean=[0.5] * 3, deviation=[0.5] * 3)

TWO, FIVE = [0, 1], ["a", "b", "c", "d", "e"]

FAMILIES = {
    "plain": (config.Tabular(hidden=[8, 4]), {"size": NUMBER, "shade": SHADE}),
    "residual": (config.Tabular(hidden=[8, 4], residual=True), {"size": NUMBER, "shade": SHADE}),
    "mean": (config.TextEncoder(family="text", encoder="none", architecture=BERT), {"body": BODY}),
    "cls": (config.TextEncoder(family="text", encoder="none", architecture=BERT, pooling="cls"), {"body": BODY}),
    "vit": (config.Vision(family="vision", patch=2, width=8, depth=2, heads=2), {"face": FACE}),
    "cnn": (config.Vision(family="vision", kind="cnn", width=4, depth=2), {"face": FACE}),
}


@pytest.fixture(scope="module")
def batch() -> dict[str, Tensor]:
    """Six rows of each kind of input; the texts have 0 to 5 tokens."""
    draw = torch.Generator().manual_seed(5)
    lengths = torch.arange(6)
    return {
        "numbers": torch.randn((6, 2), generator=draw),
        "categories": torch.randint(3, (6, 1), generator=draw),
        "tokens": torch.randint(1, 50, (6, 8), generator=draw, dtype=torch.int32),
        "mask": (torch.arange(8) < lengths[:, None]).to(torch.uint8),
        "image": torch.randn((6, 3, 6, 4), generator=draw),
    }


def state_of(classes: list = TWO, **columns) -> FeatureState:
    return FeatureState(label="y", columns=columns or {"shade": SHADE}, classes=classes)


def refusal(state: FeatureState, model: config.Model) -> str:
    with pytest.raises(ConfigError) as caught:
        models.require(model, state)
    return str(caught.value)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("classes", "shape"), [(TWO, (6,)), (FIVE, (6, 5))])
def test_two_classes_have_one_logit_and_more_one_each(name, classes, shape, batch):
    model, columns = FAMILIES[name]
    assert logits_of(models.build(model, state_of(classes, **columns)), batch).shape == shape


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rows_logits_do_not_depend_on_the_rows_beside_it(name, batch):
    model, columns = FAMILIES[name]
    network = models.build(model, state_of(FIVE, **columns))
    torch.testing.assert_close(logits_row_by_row(network, batch), logits_of(network, batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_weight_gets_a_gradient(name, batch):
    """DDP waits for each; with one that no loss reaches, it would wait for ever."""
    model, columns = FAMILIES[name]
    network = models.build(model, state_of(FIVE, **columns))
    network(batch).square().sum().backward()
    assert [weight for weight, value in network.named_parameters() if value.grad is None] == []


@pytest.mark.parametrize("name", ["mean", "vit"])
def test_activations_that_are_computed_twice_give_the_same_gradients(name, batch):
    model, columns = FAMILIES[name]
    network = models.build(model, state_of(FIVE, **columns))
    kept = gradients(network, batch)
    network.checkpoint_activations()
    torch.testing.assert_close(gradients(network, batch), kept, atol=0, rtol=0)


def gradients(network: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    """With the same dropout each time."""
    torch.manual_seed(3)
    network.zero_grad()
    network.train()(batch).square().sum().backward()
    return [value.grad.clone() for value in network.parameters()]


@pytest.mark.parametrize("model", [model for model, _ in FAMILIES.values()] + [config.Own(family="a.b:c", settings={"k": [1]})])
def test_a_section_comes_back_from_a_bundles_json(model):
    features = config.Features.model_validate({"label": "y", "columns": {"x": {"kind": "number"}}})
    about = BundleConfig(name="toy", seed=1, dataset="d", model=model, features=features)
    assert BundleConfig.model_validate_json(about.model_dump_json()).model == model


@pytest.mark.parametrize(("column", "name"), [(BODY, "body"), (FACE, "face")])
def test_tabular_refuses_text_and_images_by_name(column, name):
    said = refusal(state_of(shade=SHADE, **{name: column}), config.Tabular())
    assert said.startswith(f"features.columns has {name}, text or images, and the family tabular")


@pytest.mark.parametrize(("name", "kind"), [("mean", "text"), ("vit", "image")])
def test_a_family_of_one_column_refuses_others_by_name(name, kind):
    model, columns = FAMILIES[name]
    said = refusal(state_of(shade=SHADE, **columns), model)
    assert said.startswith(f"features.columns has shade, and the family {model.family} takes one column of kind {kind}")


def test_what_a_family_refuses_is_not_built():
    with pytest.raises(ConfigError, match=r"features\.columns has body"):
        models.build(config.Tabular(), state_of(body=BODY))


@pytest.mark.parametrize(
    ("family", "said"),
    [("no_such_package:build", "'no_such_package:build' cannot be imported"), (f"{__name__}:nothing", "cannot be imported")],
)
def test_a_users_own_family_that_cannot_be_imported_is_refused(family, said):
    assert said in refusal(state_of(), config.Own(family=family))


def test_an_unknown_family_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown family 'tabula'; did you mean 'tabular'\? Known: tabular, text, vision,"):
        TypeAdapter(config.Model).validate_python({"family": "tabula"})


def test_a_section_without_a_family_is_tabular():
    assert TypeAdapter(config.Model).validate_python({"hidden": [3]}) == config.Tabular(hidden=[3])


def test_a_users_own_family_judges_its_columns_for_itself():
    models.require(config.Own(family=f"{tabular.__name__}:build"), state_of(body=BODY))


class Constant(nn.Module):
    def __init__(self, value: float):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.value.expand(len(batch["numbers"]))


def constant(model: config.Own, state: FeatureState) -> nn.Module:
    return Constant(model.settings["value"])


def test_a_users_own_family_reads_its_settings(batch):
    model = models.resolve(config.Own(family=f"{__name__}:constant", settings={"value": 2.5}), state_of())
    network = models.build(model, state_of())
    models.load_pretrained(network, model)
    assert logits_of(network, batch).tolist() == [2.5] * 6


def test_residual_blocks_add_to_what_comes_in():
    block = tabular.Residual(4, 8, 0.0)
    nn.init.zeros_(block.inside[-1].weight)
    nn.init.zeros_(block.inside[-1].bias)
    inputs = torch.randn(3, 4)
    assert torch.equal(block(inputs), inputs)
