"""A toy encoder, and how the families' tests ask a network."""

import torch
from torch import Tensor, nn

BERT = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}


def logits_of(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.inference_mode():
        return network.eval()(batch)


def logits_row_by_row(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    rows = [{name: values[index : index + 1] for name, values in batch.items()} for index in range(len(batch["numbers"]))]
    return torch.cat([logits_of(network, row) for row in rows])
