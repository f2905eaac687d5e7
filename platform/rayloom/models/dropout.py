"""Dropout that costs a CPU less than half of torch's, which draws each unit's fate as a number of its own."""

import torch
from torch import Tensor, nn

STEPS = 2**16
"""A unit's fate takes 16 random bits: four units share what torch draws for one."""


class Dropout(nn.Dropout):
    """torch.nn.Dropout, with `p` rounded to 1/65,536 on CPUs; kept units are scaled by what that `p` asks for."""

    def forward(self, input: Tensor) -> Tensor:
        dropped = round(self.p * STEPS)
        if not self.training or input.device.type != "cpu" or not 0 < dropped < STEPS:
            return super().forward(input)
        kept = random_bits(input.numel()).view(input.shape) >= dropped - STEPS // 2
        return input * kept.to(input.dtype).mul_(STEPS / (STEPS - dropped))


def random_bits(count: int) -> Tensor:
    """int16 (count,), evenly spread over all its values, by torch's generator."""
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count]
