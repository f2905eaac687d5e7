"""The last layer of every family."""

from torch import Tensor, nn


class Head(nn.Linear):
    """Logits: (n,) where there are two classes, of the second; else (n, classes)."""

    def __init__(self, inputs: int, classes: int):
        super().__init__(inputs, 1 if classes == 2 else classes)

    def forward(self, input: Tensor) -> Tensor:
        logits = super().forward(input)
        return logits.squeeze(1) if self.out_features == 1 else logits
