"""Tabular family: an embedding for each category beside the numbers, then a multi-layer perceptron with dropout."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from rayloom import config
from rayloom.errors import ConfigError
from rayloom.features import FeatureState, ImageState, TextState


class Tabular(nn.Module):
    """Entity embeddings (Guo and Berkhahn, 2016) and an MLP with one logit.

    Args:
        number_width: k, the number of numeric inputs.
        cardinalities: the number of indices of each of the c categorical inputs.
        hidden: widths of the hidden layers.
        embedding: the largest width of an embedding; a category of few values gets half their number.
        dropout: probability that a hidden unit is left out of a training step.
    """

    def __init__(self, number_width: int, cardinalities: list[int], hidden: list[int], embedding: int, dropout: float):
        super().__init__()
        embedding_widths = [min(embedding, (size + 1) // 2) for size in cardinalities]
        self.embeddings = nn.ModuleList(map(nn.Embedding, cardinalities, embedding_widths))
        widths = [number_width + sum(embedding_widths), *hidden]
        layers = [
            layer
            for inputs, outputs in pairwise(widths)
            for layer in (nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout))
        ]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 1))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits (n,) of {"numbers": float32 (n, k), "categories": int64 (n, c)}."""
        embedded = [table(batch["categories"][:, index]) for index, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([batch["numbers"], *embedded], dim=1)).squeeze(1)


def require(model: config.Model, state: FeatureState) -> None:
    """Raises ConfigError for columns of text and images."""
    other = [name for name, column in state.columns.items() if isinstance(column, TextState | ImageState)]
    if other:
        raise ConfigError(
            f"features.columns has {', '.join(other)}, text or images, and the family tabular takes neither; remove it."
        )


def build(model: config.Model, state: FeatureState) -> Tabular:
    return Tabular(len(state.number_names()), state.cardinalities(), model.hidden, model.embedding, model.dropout)
