"""The recurrent network that LEAF trains on Shakespeare's plays."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class CharLstm(nn.Module):
    """See `char_lstm`."""

    def __init__(self, num_classes: int, vocabulary: int, embedding: int, width: int, depth: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, width, num_layers=depth, batch_first=True)
        self.classify = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits, from the last state."""
        states, _ = self.recurrent(self.symbols(x))
        scores: Tensor = self.classify(states[:, -1])
        return scores


def char_lstm(
    num_classes: int = 128,
    *,
    input_shape: Sequence[int] = (80,),
    vocabulary: int = 128,
    embedding: int = 8,
    width: int = 256,
    depth: int = 2,
) -> CharLstm:
    """LSTM layers over an embedding of token indices below `vocabulary`, such as characters."""
    if len(input_shape) != 1:
        raise ValueError(f"char_lstm needs sequences of one length, got inputs of shape {tuple(input_shape)}")
    return CharLstm(num_classes, vocabulary, embedding, width, depth)
