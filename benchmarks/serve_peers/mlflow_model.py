"""A bundle as an MLflow pyfunc, by models from code: MLflow runs this file, and nothing is pickled.

mlflow models serve -m FOLDER -p PORT --env-manager local --workers 1
"""

from pathlib import Path
from typing import Any

import mlflow.models
import mlflow.pyfunc
import pandas as pd


class Peer(mlflow.pyfunc.PythonModel):
    def load_context(self, context: Any) -> None:
        import torch

        from rayloom import bundle
        from rayloom.serving.predictor import Predictor

        torch.set_num_threads(context.model_config["threads"])
        self.predictor = Predictor(bundle.load(Path(context.artifacts["bundle"])))

    def predict(self, context: Any, model_input: pd.DataFrame) -> list[dict]:
        cells = model_input.astype(object)
        return self.predictor.answer(cells.where(cells.notna(), None).to_dict("records"))


mlflow.models.set_model(Peer())  # what MLflow looks for in this file
