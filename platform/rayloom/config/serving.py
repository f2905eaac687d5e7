"""Sections of `serve` that are about what is kept of requests, and about how they come in."""

from pydantic import Field, model_validator

from rayloom.config.base import Memory, Section, Share

RECORDED = ("_time", "_request", "_row", "_label", "_probability", "_probabilities", "_unseen", "_cut", "model_version")
"""What a record's file says beside the record's fields; see `rayloom.serving.capture`."""


class Records(Section):
    """What is kept of requests and their answers, for drift detection and for finding out later why an answer was given.

    Nothing is kept by default: requests may be about people, and whoever keeps that must want it and say for how long.
    """

    share: Share = Field(default=0.0, description="share of the requests that are kept with their answers; 0 for none")
    folder: str | None = Field(default=None, description="default: serving/NAME-records below storage.root")
    rotate_rows: int = Field(default=20_000, ge=1, description="rows after which a replica begins a new file")
    rotate_s: float = Field(default=300.0, ge=1, le=86400, description="seconds after which it does, at the latest")
    max_waiting_rows: int = Field(
        default=100_000, ge=1, description="rows in a replica's memory that are not in a file yet; more are dropped and counted"
    )
    max_cell_bytes: int = Field(
        default=16_384, ge=16, description="bytes of a text or an image; a longer text is cut, a larger image left out"
    )
    keep_days: float = Field(default=30.0, gt=0, le=36500, description="days after which a file is removed")
    keep_bytes: Memory = Field(default="10g", description="size of all files; beyond it the oldest are removed")

    @model_validator(mode="after")
    def _room_for_a_file(self) -> "Records":
        if self.rotate_rows > self.max_waiting_rows:
            raise ValueError(
                f"serve.records.rotate_rows is {self.rotate_rows:,} and max_waiting_rows is {self.max_waiting_rows:,}, so rows "
                "are dropped before a file is full; lower the first or raise the second"
            )
        return self


class Tls(Section):
    """With it, requests come in by HTTPS alone: TLS 1.2 or newer, HTTP/1.1 or HTTP/2."""

    certificate: str = Field(description="PEM file with the certificate, and those between it and its root")
    key: str = Field(description="PEM file with the private key, which its owner alone may read (chmod 600)")
