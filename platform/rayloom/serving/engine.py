"""How a model computes logits: texts in packs of similar length, with fused attention, on a device or so many CPUs.

A text is padded to the longest beside it, and padding costs what tokens do. So rows are sorted by length and cut into packs
whose tokens, with padding, are bounded: memory is, too, and what a pack works on stays in the caches. Neither changes an answer
by more than its last bits.
"""

import logging

import numpy as np
import torch
from torch import nn

logger = logging.getLogger("rayloom.serving")

TOKENS = 16_384
"""Of one pass of a GPU, where nothing else is said."""

PACK_TOKENS = 1024
"""Of a CPU's pack: with twice as many, MiniLM's activations no longer come from memory that the process has already, and with
half as many its matrices are too small. Either costs a text a twentieth."""


def fuse_attention(model: nn.Module) -> None:
    """Has Hugging Face encoders compute attention with torch's fused kernel, whatever they were trained with: without
    gradients it is the fastest at any length. One that cannot stays as it is."""
    for part in model.modules():
        choose = getattr(part, "set_attn_implementation", None)
        if choose is None:
            continue
        try:
            choose("sdpa")
        except (ValueError, ImportError) as error:
            logger.info("%s keeps its own attention, which is slower: %s", type(part).__name__, str(error).splitlines()[0])


def use_cpus(count: int) -> None:
    """Has torch compute on so many CPUs, in this thread."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def lengths(mask: np.ndarray) -> np.ndarray:
    """int (n,): the columns up to each row's last 1, and 1 where it has none, of uint8 (n, L). Padding before a text counts."""
    return np.where(mask.any(1), mask.shape[1] - mask[:, ::-1].argmax(1), 1)


def packs(tokens: np.ndarray, most: int) -> list[np.ndarray]:
    """Cuts rows into packs of similar length, the longest first.

    Args:
        tokens: int (n,), of each row.
        most: tokens in a pack, with padding; a row of more goes alone.

    Returns:
        The rows' numbers; each row is in one pack.
    """
    order = np.argsort(-tokens, kind="stable")
    found, start = [], 0
    while start < len(order):
        end = start + max(1, most // int(tokens[order[start]]))
        found.append(order[start:end])
        start = end
    return found


def logits(model: nn.Module, arrays: dict[str, np.ndarray], device: torch.device, tokens: int) -> np.ndarray:
    """float32 (n,) or (n, classes): of n rows, in their order.

    Args:
        model: maps a batch, as `features.apply` gives it, to logits; lies on `device`.
        tokens: of a text's pack, with padding.
    """
    with torch.inference_mode():
        if not len(arrays.get("mask", ())):
            return compute(model, arrays, device).cpu().numpy()
        size = lengths(arrays["mask"])
        cut = packs(size, tokens)
        # Nothing waits for a device before all packs are there.
        parts = [compute(model, pack(arrays, rows, int(size[rows[0]])), device) for rows in cut]
        found = torch.cat(parts).cpu().numpy()
    ordered = np.empty_like(found)
    ordered[np.concatenate(cut)] = found
    return ordered


def compute(model: nn.Module, arrays: dict[str, np.ndarray], device: torch.device) -> torch.Tensor:
    inputs = {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}
    return model(inputs).float()


def pack(arrays: dict[str, np.ndarray], rows: np.ndarray, longest: int) -> dict[str, np.ndarray]:
    """These rows alone, without the columns of texts that none of them needs."""
    wide = ("tokens", "mask")
    return {name: array[rows, :longest] if name in wide else array[rows] for name, array in arrays.items()}
