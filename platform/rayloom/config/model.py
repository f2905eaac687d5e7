"""The model section of the pipeline file: a network of one of the families of `rayloom.models`, chosen by `family`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from rayloom.config.base import Fraction, Section
from rayloom.errors import hint

FAMILIES = ("tabular", "text", "vision")
"""Of rayloom.models; a name with a colon is a user's own."""

DEFAULT_FAMILY = "tabular"

Width = Annotated[int, Field(ge=1, le=65536)]


class Tabular(Section):
    """Numbers and categories: embeddings and a multi-layer perceptron."""

    family: Literal["tabular"] = "tabular"
    hidden: list[Width] = Field(default=[128, 64], min_length=1, description="units of each hidden layer")
    embedding: int = Field(default=8, ge=1, le=4096, description="the largest width of a category's embedding")
    dropout: Fraction = 0.2
    residual: bool = Field(
        default=False,
        description="a residual block for each of `hidden`, with as many units inside; the width between blocks is hidden[0]",
    )


class TextEncoder(Section):
    """A text: a Hugging Face encoder (BERT, MiniLM, DistilBERT, RoBERTa) with a linear head on its tokens' mean or first."""

    family: Literal["text"]
    encoder: str = Field(
        min_length=1,
        description="a folder with config.json and *.safetensors: a path, package:NAME/FOLDER, or the hub's OWNER/NAME",
    )
    revision: str | None = Field(default=None, description="the hub's commit or branch; training writes the commit in")
    pooling: Literal["mean", "cls"] = Field(
        default="mean", description="what stands for a text: its tokens' mean, or its first"
    )
    dropout: Fraction = Field(default=0.1, description="before the head; the encoder's layers keep their own")
    attention_dropout: Fraction = Field(
        default=0.0, description="in the encoder's attention, whatever its config.json says; above 0, CPUs need twice the time"
    )
    attention: Literal["sdpa", "eager"] = Field(
        default="sdpa", description="how attention is computed: eager is faster on CPUs for texts of up to about 128 tokens"
    )
    architecture: dict[str, Any] | None = Field(
        default=None, description="the encoder's config.json; training writes it in, so that a bundle needs no folder"
    )


class Vision(Section):
    """An image: a small vision transformer, or a small convolutional network."""

    family: Literal["vision"]
    kind: Literal["vit", "cnn"] = "vit"
    width: Width = Field(default=64, description="vit: numbers that stand for a patch; cnn: channels of the first stage")
    depth: int = Field(default=4, ge=1, le=64, description="vit: blocks; cnn: stages, each half as high and wide as the last")
    patch: int = Field(default=4, ge=1, le=4096, description="vit: a patch's height and width in pixels")
    heads: int = Field(default=4, ge=1, le=1024, description="vit: attention heads of a block")
    dropout: Fraction = 0.1
    shift: int = Field(
        default=0, ge=0, le=4096, description="in training, move each image up to so many pixels in any direction"
    )

    @model_validator(mode="after")
    def _fits(self) -> "Vision":
        if self.kind == "vit" and self.width % self.heads:
            raise ValueError(f"width is {self.width}, no multiple of heads ({self.heads}); change one of them")
        return self


class Own(Section):
    """A user's own network: `family` is a function as 'package.module:function'; see `rayloom.models`."""

    family: str
    settings: dict[str, Any] = Field(default={}, description="what the function reads; Rayloom does not")

    @field_validator("family")
    @classmethod
    def _known(cls, family: str) -> str:
        if ":" not in family:
            raise ValueError(f"unknown family '{family}'{hint(family, FAMILIES)[:-1]}, or your own as package.module:function")
        return family


def _family(value: Any) -> str:
    """The family that a section names; `Own` refuses a name that nobody knows."""
    if isinstance(value, Section):
        family = value.family  # type: ignore[attr-defined]
    else:
        family = value.get("family", DEFAULT_FAMILY) if isinstance(value, dict) else DEFAULT_FAMILY
    return family if family in FAMILIES else "own"


Model = Annotated[
    Annotated[Tabular, Tag("tabular")]
    | Annotated[TextEncoder, Tag("text")]
    | Annotated[Vision, Tag("vision")]
    | Annotated[Own, Tag("own")],
    Discriminator(_family),
]
