"""What all sections of the pipeline file share."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,62}$")]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Resources = dict[str, Annotated[float, Field(ge=0)]]


Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,6}[mg]$")]
"""Binary megabytes or gigabytes: 512m, 2g."""


def count_bytes(memory: str) -> int:
    """Bytes of a Memory.

    >>> count_bytes("2g")
    2147483648
    """
    return int(memory[:-1]) * {"m": 2**20, "g": 2**30}[memory[-1]]


def _percent_to_share(value: Any) -> Any:
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100
        except ValueError:
            return value
    return value


Share = Annotated[float, BeforeValidator(_percent_to_share), Field(ge=0, le=1)]
"""A part of the whole: 0.05 or '5%'."""


class Section(BaseModel):
    """A part of the pipeline file: unknown keys are refused, values do not change after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
