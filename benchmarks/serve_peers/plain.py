"""A bundle's predictor as one writes it by hand: the model as PyTorch and transformers give it, without Rayloom's engine."""

from pathlib import Path

from safetensors.torch import load_file

from rayloom import bundle, models
from rayloom.serving.predictor import Predictor


def load(folder: Path) -> Predictor:
    made = bundle.load(folder)
    predictor, model = Predictor(made), models.build(made.config.model, made.state)
    model.load_state_dict(load_file(made.weights))
    predictor.model = model.eval()
    return predictor
