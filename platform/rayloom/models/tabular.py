"""Tabular family: an embedding for each category beside the numbers, then a multi-layer perceptron with dropout."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from rayloom import config
from rayloom.errors import ConfigError
from rayloom.features import FeatureState, ImageState, TextState
from rayloom.models.dropout import Dropout
from rayloom.models.head import Head


class Tabular(nn.Module):
    """Entity embeddings (Guo and Berkhahn, 2016) and an MLP, plain or of residual blocks.

    Args:
        number_width: k, the number of numeric inputs.
        cardinalities: the number of indices of each of the c categorical inputs.
        model: the widths.
        classes: how many the label has.
    """

    def __init__(self, number_width: int, cardinalities: list[int], model: config.Tabular, classes: int):
        super().__init__()
        embedding_widths = [min(model.embedding, (size + 1) // 2) for size in cardinalities]
        self.embeddings = nn.ModuleList(map(nn.Embedding, cardinalities, embedding_widths))
        layers = residual_layers if model.residual else plain_layers
        self.layers = layers(number_width + sum(embedding_widths), model.hidden, model.dropout, classes)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits (n,) or (n, classes) of {"numbers": float32 (n, k), "categories": int64 (n, c)}."""
        embedded = [table(batch["categories"][:, index]) for index, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([batch["numbers"], *embedded], dim=1))


class Residual(nn.Module):
    """x + f(x), where f normalises, widens, cuts below 0 and narrows again (Gorishniy et al., 2021)."""

    def __init__(self, width: int, inner: int, dropout: float):
        super().__init__()
        self.inside = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, inner), nn.ReLU(), Dropout(dropout), nn.Linear(inner, width)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.inside(inputs)


def plain_layers(inputs: int, hidden: list[int], dropout: float, classes: int) -> nn.Sequential:
    layers = [
        layer
        for above, below in pairwise([inputs, *hidden])
        for layer in (nn.Linear(above, below), nn.ReLU(), Dropout(dropout))
    ]
    return nn.Sequential(*layers, Head(hidden[-1], classes))


def residual_layers(inputs: int, hidden: list[int], dropout: float, classes: int) -> nn.Sequential:
    width = hidden[0]
    blocks = [Residual(width, inner, dropout) for inner in hidden]
    return nn.Sequential(nn.Linear(inputs, width), *blocks, nn.LayerNorm(width), nn.ReLU(), Head(width, classes))


def require(model: config.Tabular, state: FeatureState) -> None:
    """Raises ConfigError for columns of text and images."""
    other = [name for name, column in state.columns.items() if isinstance(column, TextState | ImageState)]
    if other:
        raise ConfigError(
            f"features.columns has {', '.join(other)}, text or images, and the family tabular takes neither; remove it."
        )


def build(model: config.Tabular, state: FeatureState) -> Tabular:
    return Tabular(len(state.number_names()), state.cardinalities(), model, len(state.classes))
