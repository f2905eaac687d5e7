"""The features section of the pipeline file. What the kinds do is `rayloom.features`."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rayloom.config.base import Section

BY_TRAINING = ("mean", "median", "most_frequent")

MIN_COUNT, BUCKETS = 20, 1024


class Number(Section):
    """A number. A missing one is imputed, then scaled as the others; a flag tells where, if training had missing values.

    standard: (x - mean) / deviation; robust: (x - median) / (third quartile - first quartile); both within ±10.
    quantile: the rank among the training split's values, from -1 (smallest) to 1 (largest). none: as it is.
    """

    kind: Literal["number"]
    impute: str | float = Field(default="mean", description="mean, median, most_frequent, or the number to put in")
    scale: Literal["standard", "robust", "quantile", "none"] = "standard"

    @field_validator("impute", mode="before")
    @classmethod
    def _known(cls, impute: Any) -> Any:
        is_number = isinstance(impute, int | float) and not isinstance(impute, bool)
        if impute not in BY_TRAINING and not (is_number and abs(impute) <= 1e100):  # NaN is not below it either
            raise ValueError(f"impute is {impute!r:.80}; write {', '.join(BY_TRAINING)} or a number")
        return impute


class Category(Section):
    """Text, a whole number or a boolean with few values; rarer than `min_count` in training is 'unknown', as are unseen ones.

    embedding: a row of an embedding table for each value. one_hot: a 0/1 number for each value, all 0 for unknown.
    hash: an embedding row for each of `buckets`, which values share by their hash: no vocabulary, so any number of values.
    """

    kind: Literal["category"]
    encode: Literal["embedding", "one_hot", "hash"] = "embedding"
    min_count: int = Field(default=MIN_COUNT, ge=1)
    buckets: int = Field(default=BUCKETS, ge=2, le=2**24)

    @model_validator(mode="after")
    def _meant(self) -> "Category":
        if self.encode != "hash" and self.buckets != BUCKETS:
            raise ValueError(f"buckets goes with `encode: hash`, not with {self.encode}; remove one of them")
        if self.encode == "hash" and self.min_count != MIN_COUNT:
            raise ValueError("min_count has no meaning with `encode: hash`, which counts nothing; remove one of them")
        return self


class Date(Section):
    """A date, as categories of its parts. A timestamp counts by its date in UTC."""

    kind: Literal["date"]
    parts: list[Literal["weekday", "month", "day"]] = Field(default=["weekday"], min_length=1)


class Text(Section):
    """Text, as the first `max_tokens` tokens of a tokenizer. A missing text counts as an empty one."""

    kind: Literal["text"]
    tokenizer: str = Field(description="a tokenizer.json of the `tokenizers` library: a path, or package:NAME/FILE")
    max_tokens: int = Field(default=256, ge=1, le=2**17)


class Image(Section):
    """An image file's bytes, as pixels standardised by channel. A missing image counts as the mean one."""

    kind: Literal["image"]
    size: list[Annotated[int, Field(ge=1, le=4096)]] | None = Field(
        default=None, min_length=2, max_length=2, description="[height, width] to resize to; where left out, all must be equal"
    )
    channels: Literal[1, 3] = Field(default=3, description="1: grey, 3: red, green and blue")


Feature = Annotated[Category | Number | Date | Text | Image, Field(discriminator="kind")]


class Features(Section):
    """The label and the columns of a dataset version that a model may see."""

    label: str = Field(description="0 and 1, booleans, or the classes' names or whole numbers")
    columns: dict[str, Feature] = Field(min_length=1)
    known_after: list[str] = Field(default=[], description="columns known only after the fact: none may be a feature")
    leak_auc: float = Field(
        default=0.98, gt=0.5, le=1, description="a single feature that ranks the label this well is refused"
    )

    @model_validator(mode="after")
    def _one_of_a_kind(self) -> "Features":
        for kind in ("text", "image"):
            names = [name for name, feature in self.columns.items() if feature.kind == kind]
            if len(names) > 1:
                raise ValueError(f"features.columns has {', '.join(names)} of kind {kind}, and a model takes one; keep one")
        return self
