"""Keys of `serve` that say how many replicas there are, and where on the cluster's one front they answer."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from rayloom.config.base import Section

Route = Annotated[str, Field(pattern=r"^(/|(/[A-Za-z0-9][A-Za-z0-9._~-]{0,62}){1,8})$")]
"""Where an application's paths begin: / or /news."""


class Scaling(Section):
    """As many replicas as the requests under way need."""

    min: int = Field(
        default=1, ge=0, le=1000, description="0: none while nobody asks; the first request then waits until one is up"
    )
    max: int = Field(ge=1, le=1000)
    requests: float = Field(
        default=32.0,
        gt=0,
        le=100_000,
        description="under way in a replica, waiting ones included; beyond it, more come",
    )
    up_s: float = Field(default=5.0, ge=0, le=3600, description="seconds that it is exceeded before replicas come")
    down_s: float = Field(default=300.0, ge=1, le=86400, description="seconds that fewer would do before replicas go")

    @model_validator(mode="after")
    def _ordered(self) -> "Scaling":
        if self.min > self.max:
            raise ValueError(f"serve.replicas.min is {self.min} and max is {self.max}; raise max")
        return self


def _kind(value: Any) -> str:
    return "scaling" if isinstance(value, dict | Scaling) else "number"


Replicas = Annotated[
    Annotated[int, Field(ge=1, le=1000), Tag("number")] | Annotated[Scaling, Tag("scaling")], Discriminator(_kind)
]
"""A number, or between which numbers: 2, or {min: 1, max: 8}."""
