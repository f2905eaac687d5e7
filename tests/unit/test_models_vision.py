"""The vision family: both kinds learn, and images are moved in training alone."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from rayloom import config, models
from rayloom.errors import ConfigError
from rayloom.features import FeatureState, ImageState
from rayloom.models.vision import shifted
from tests.unit.families import logits_of

KINDS = {
    "vit": config.Vision(family="vision", patch=2, width=16, depth=2, heads=2, dropout=0.0),
    "cnn": config.Vision(family="vision", kind="cnn", width=8, depth=2, dropout=0.0),
}


def state_of(height: int = 4, width: int = 4) -> FeatureState:
    image = ImageState(height=height, width=width, channels=1, resize=False, mean=[0.5], deviation=[0.5])
    return FeatureState(label="y", columns={"image": image}, classes=["a", "b", "c", "d"])


@pytest.fixture(scope="module")
def stripes() -> dict[str, Tensor]:
    """How is the image striped: across, along, in squares or not at all? 32 noisy images of 4 × 4 pixels."""
    draw = torch.Generator().manual_seed(5)
    line = torch.tensor([1.0, -1.0, 1.0, -1.0])
    across, along = line[:, None].expand(4, 4), line.expand(4, 4)
    patterns = torch.stack([across, along, across * along, torch.zeros(4, 4)])
    labels = torch.arange(32) % 4
    return {"image": patterns[labels, None] + 0.3 * torch.randn((32, 1, 4, 4), generator=draw), "label": labels}


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_how_images_are_striped(kind, stripes):
    torch.manual_seed(3)
    network = models.build(KINDS[kind], state_of())
    fit(network, stripes, steps=30)
    assert (logits_of(network, stripes).argmax(1) == stripes["label"]).float().mean() > 0.95


def fit(network: nn.Module, batch: dict[str, Tensor], steps: int) -> None:
    torch.set_num_threads(1)  # on images this small, threads mostly wait for each other
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    network.train()
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(network(batch), batch["label"]).backward()
        optimizer.step()


@pytest.mark.parametrize(("height", "width"), [(5, 4), (4, 5)])
def test_images_that_patches_do_not_fill_are_refused(height, width):
    with pytest.raises(ConfigError, match=f"model.patch is 2, and images of {height} × {width} pixels"):
        models.require(KINDS["vit"], state_of(height, width))


def test_a_width_that_heads_do_not_share_is_refused():
    with pytest.raises(ValueError, match="width is 10, no multiple of heads \\(4\\)"):
        config.Vision(family="vision", width=10, heads=4)


def test_images_move_whole_and_their_border_fills_the_gap():
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    torch.manual_seed(1)
    moved = {tuple(shifted(image, 1).flatten().tolist()) for _ in range(200)}
    down_and_right = (0, 0, 1, 0, 0, 1, 3, 3, 4)
    assert len(moved) == 9 and tuple(range(9)) in moved and down_and_right in moved


def test_each_image_moves_by_itself():
    torch.manual_seed(1)
    images = torch.arange(9.0).reshape(1, 1, 3, 3).expand(50, 1, 3, 3)
    assert len({tuple(image.flatten().tolist()) for image in shifted(images, 1)}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_images_stand_still_where_nothing_is_learned(kind, stripes):
    network = models.build(KINDS[kind].model_copy(update={"shift": 1}), state_of())
    assert torch.equal(logits_of(network, stripes), logits_of(network, stripes))


@pytest.mark.parametrize("kind", KINDS)
def test_images_move_in_training(kind, stripes):
    network = models.build(KINDS[kind].model_copy(update={"shift": 1}), state_of()).train()
    assert not torch.equal(network(stripes), network(stripes))
