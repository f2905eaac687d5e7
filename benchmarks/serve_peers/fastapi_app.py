"""A bundle behind FastAPI and uvicorn: one worker, uvloop and httptools, records checked by pydantic, one prediction a request.

python -m benchmarks.serve_peers.fastapi_app BUNDLE PORT async 1     # or: def; threads of torch
"""

import sys
from pathlib import Path
from typing import Any

import orjson
import torch
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel, ConfigDict, create_model

from benchmarks.serve_peers import plain
from rayloom.features import CategoryState, ColumnState, FeatureState, HashState


def record_type(state: FeatureState) -> type[BaseModel]:
    """A pydantic model with a field for each column: all are needed, each may be null."""
    fields: dict[str, Any] = {name: (field_type(column), ...) for name, column in state.columns.items()}
    return create_model("Record", __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)


def field_type(column: ColumnState) -> Any:
    if isinstance(column, CategoryState | HashState):
        return {"text": str, "integer": int, "boolean": bool}[column.type] | None
    return str | None if column.kind in ("date", "text", "image") else float | None


def create(folder: Path, is_async: bool) -> FastAPI:
    """The application; its endpoint is `async def`, or `def`, which Starlette runs in threads."""
    predictor = plain.load(folder)
    record = record_type(predictor.bundle.state)
    app = FastAPI()

    def answer(records: list[record]) -> Response:  # type: ignore[valid-type]
        answers = predictor.answer([one.model_dump() for one in records])
        return Response(orjson.dumps({"predictions": answers}), media_type="application/json")

    async def answer_async(records: list[record]) -> Response:  # type: ignore[valid-type]
        return answer(records)

    app.post("/predict")(answer_async if is_async else answer)
    return app


def main() -> None:
    folder, port, handler, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    app = create(Path(folder), handler == "async")
    uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
