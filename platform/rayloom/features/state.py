"""What the training split taught about each column, as JSON-able models, and what each column gives to a model."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DATE_PARTS = {"weekday": 7, "month": 12, "day": 31}
"""Number of values of each part of a date; weekday 0 is Monday, month and day start at 0 as well."""

CLIP = 10.0
"""Scaled numbers beyond it are clipped: one absurd value must not make an answer infinite."""

USELESS = "in the training split: it is 0 for the model, whatever its value; remove it from features.columns"
"""The end of a warning about a column that tells nothing."""

RecordType = Literal["text", "integer", "boolean"]
"""What a category is in a record."""


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Column(_State):
    def numbers(self, name: str) -> list[str]:
        """Names of the numeric inputs that the column gives, in order."""
        return []

    def categories(self, name: str) -> dict[str, int]:
        """Names of the categorical inputs that the column gives, in order, with their numbers of indices."""
        return {}


class _Number(_Column):
    flag: bool

    def numbers(self, name: str) -> list[str]:
        return [name, f"{name} is missing"] if self.flag else [name]


class NumberState(_Number):
    """(x - center) / spread, within ±limit; a missing x is `impute`. `flag` adds a 0/1 input that is 1 where missing."""

    kind: Literal["number"] = "number"
    center: float
    spread: float = Field(gt=0)
    impute: float
    limit: float = CLIP


class RankState(_Number):
    """The rank of x among the training split's values: -1 at knots[0] or below, 1 at knots[-1] or above."""

    kind: Literal["rank"] = "rank"
    knots: list[float] = Field(min_length=2)
    impute: float


class ConstantState(_Number):
    """0.0 whatever x is: training saw one value or none, so no other can mean anything to the model."""

    kind: Literal["constant"] = "constant"


class CategoryState(_Column):
    """Index i + 1 for values[i]; 0 for a value that is missing, rare or unseen in training, and always if `constant`.

    With `encode: one_hot`, a 0/1 number for each of `values` instead; all 0 where the index is 0.
    """

    kind: Literal["category"] = "category"
    values: list[str]
    encode: Literal["embedding", "one_hot"] = "embedding"
    type: RecordType = "text"
    constant: bool = False

    def numbers(self, name: str) -> list[str]:
        return [f"{name} is {value}" for value in self.values] if self.encode == "one_hot" else []

    def categories(self, name: str) -> dict[str, int]:
        return {name: len(self.values) + 1} if self.encode == "embedding" else {}


class HashState(_Column):
    """Index 1 + hash of the value modulo `buckets`, the same on all machines; 0 where missing, and always if `constant`."""

    kind: Literal["hash"] = "hash"
    buckets: int
    type: RecordType = "text"
    constant: bool = False

    def categories(self, name: str) -> dict[str, int]:
        return {name: self.buckets + 1}


class DateState(_Column):
    """Each part of the date as a category; 0 where the date is missing, and always if `constant`."""

    kind: Literal["date"] = "date"
    parts: list[Literal["weekday", "month", "day"]]
    constant: bool = False

    def categories(self, name: str) -> dict[str, int]:
        return {f"{part} of {name}": DATE_PARTS[part] + 1 for part in self.parts}


class TextState(_Column):
    """A tokenizer, whole, as the JSON of the `tokenizers` library; `vocabulary` is the number of its tokens."""

    kind: Literal["text"] = "text"
    tokenizer: str = Field(repr=False)
    max_tokens: int
    vocabulary: int


class ImageState(_Column):
    """Pixels of `channels` × `height` × `width`: (p / 255 - mean) / deviation by channel; 0 in a channel without deviation.

    `resize`: images of another size are resized, not refused.
    """

    kind: Literal["image"] = "image"
    height: int
    width: int
    channels: Literal[1, 3]
    resize: bool
    mean: list[float]
    deviation: list[Annotated[float, Field(ge=0)]]


ColumnState = Annotated[
    NumberState | RankState | ConstantState | CategoryState | HashState | DateState | TextState | ImageState,
    Field(discriminator="kind"),
]


class FeatureState(_State):
    """All that turns a record into a model's inputs. Written as JSON into the bundle.

    Attributes:
        label: the label's column.
        classes: what the label may be, sorted: [0, 1] for 0/1 and booleans, else the training split's names or whole numbers.
        columns: what each feature's column taught, in the pipeline file's order.
    """

    label: str
    columns: dict[str, ColumnState]
    classes: list[int] | list[str] = [0, 1]

    def cardinalities(self) -> list[int]:
        """Number of indices of each categorical input, in the order of `apply`'s columns."""
        return [size for name, column in self.columns.items() for size in column.categories(name).values()]

    def number_names(self) -> list[str]:
        """What each numeric input is: one a number, one more for each missing flag, and one a value of a one-hot category."""
        return [text for name, column in self.columns.items() for text in column.numbers(name)]

    def category_names(self) -> list[str]:
        """What each categorical input is: one a category, and one a part of a date."""
        return [text for name, column in self.columns.items() for text in column.categories(name)]
