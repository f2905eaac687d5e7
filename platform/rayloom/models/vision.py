"""Vision family: a small vision transformer (vit), or a small convolutional network (cnn).

Neither mixes rows: an image's logits do not depend on the images beside it, so the cnn has group norm, not batch norm.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from rayloom import config
from rayloom.errors import ConfigError
from rayloom.features import FeatureState, ImageState
from rayloom.models.columns import only
from rayloom.models.dropout import Dropout
from rayloom.models.head import Head

POSITIONS = 0.5
"""Deviation of fresh position embeddings, about that of embedded patches: with the usual 0.02, a small model needs many epochs
to tell where each patch is."""


class Attention(nn.Module):
    """Each patch looks at all of the image (Vaswani et al., 2017)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.looks, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, patches, width) to the same shape."""
        query, key, value = self.looks(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then an MLP of each patch; both normalise first and are added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads), Dropout(dropout))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), Dropout(dropout)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(tokens)
        return tokens + self.mlp(tokens)


class Vit(nn.Module):
    """A vision transformer (Dosovitskiy et al., 2021) that answers from the mean of the patches. A convolution comes before the
    patches are cut, since with few images that learns faster and better (Xiao et al., 2021)."""

    def __init__(self, model: config.Vision, image: ImageState, classes: int):
        super().__init__()
        patches = (image.height // model.patch) * (image.width // model.patch)
        self.shift, self.recompute = model.shift, False
        self.patchify = nn.Sequential(
            nn.Conv2d(image.channels, model.width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(model.width, model.width, model.patch, model.patch),
        )  # fmt: skip
        self.positions = nn.Parameter(torch.randn(1, patches, model.width) * POSITIONS)
        self.blocks = nn.ModuleList(Block(model.width, model.heads, model.dropout) for _ in range(model.depth))
        self.norm, self.head = nn.LayerNorm(model.width), Head(model.width, classes)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits (n,) or (n, classes) of {"image": float32 (n, channels, height, width)}."""
        images = shifted(batch["image"], self.shift) if self.training else batch["image"]
        tokens = self.patchify(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            recompute = self.recompute and self.training
            tokens = checkpoint(block, tokens, use_reentrant=False) if recompute else block(tokens)
        return self.head(self.norm(tokens).mean(1))

    def checkpoint_activations(self) -> None:
        """Keeps only what goes into each block, and computes the inside again in the backward pass."""
        self.recompute = True


class Cnn(nn.Module):
    """Stages of two convolutions; each halves height and width and doubles the channels. Answers from the mean of the last."""

    def __init__(self, model: config.Vision, image: ImageState, classes: int):
        super().__init__()
        self.shift = model.shift
        widths = [model.width * 2**index for index in range(model.depth)]
        stages = [stage(above, below) for above, below in zip([image.channels, *widths], widths, strict=False)]
        self.stages = nn.Sequential(*stages)
        self.dropout, self.head = Dropout(model.dropout), Head(widths[-1], classes)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits (n,) or (n, classes) of {"image": float32 (n, channels, height, width)}."""
        images = shifted(batch["image"], self.shift) if self.training else batch["image"]
        return self.head(self.dropout(self.stages(images).mean((2, 3))))


def stage(inputs: int, outputs: int) -> nn.Sequential:
    # One group: of several, each would have a mean and a deviation of its own, and a small last stage nothing left to tell.
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(1, outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(1, outputs), nn.ReLU(),
    )  # fmt: skip


def shifted(images: Tensor, most: int) -> Tensor:
    """Each image moved by up to `most` pixels down, up, right or left, by torch's generator; its border fills what is bared.

    Args:
        images: (n, channels, height, width).
    """
    if not most:
        return images
    (rows, _, height, width), device = images.shape, images.device
    down, right = torch.randint(-most, most + 1, (2, rows, 1), device=device)
    y = (torch.arange(height, device=device) + down).clamp(0, height - 1)
    x = (torch.arange(width, device=device) + right).clamp(0, width - 1)
    every = torch.arange(rows, device=device)[:, None, None]
    return images[every, :, y[:, :, None], x[:, None, :]].movedim(-1, 1)


def require(model: config.Vision, state: FeatureState) -> None:
    """Raises ConfigError where there is anything but one column of images, or they cannot be cut into patches."""
    image = only(ImageState, "image", "vision", state)
    if model.kind == "vit" and (image.height % model.patch or image.width % model.patch):
        raise ConfigError(
            f"model.patch is {model.patch}, and images of {image.height} × {image.width} pixels are no multiple of it; set "
            f"another, or features.columns' size."
        )


def build(model: config.Vision, state: FeatureState) -> nn.Module:
    kinds = {"vit": Vit, "cnn": Cnn}
    return kinds[model.kind](model, only(ImageState, "image", "vision", state), len(state.classes))
