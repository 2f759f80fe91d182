"""Predictions of a teacher in the channels of samples.

Shapes: N sequences, K predictions of a token, T tokens of a sequence.
"""

import torch
from torch import Tensor

NUM_CHANNELS = 4
"""Channels of a sample before predictions of a teacher: ids, loss mask, positions and weights."""
TAUGHT_IDS, TAUGHT_LOGPROBS = "taught_ids", "taught_logprobs"
"""Keys in a batch's `extra`: a teacher's K likeliest ids and their log-probabilities, [N, T, K]."""
LOGPROB_BITS = 16
"""A prediction is one number: its id, and below it the bits of an fp16 log-probability."""


def decode_predictions(channels_NKT: Tensor) -> dict[str, Tensor]:
    """Return the predictions of a teacher in the channels of samples, empty without channels."""
    if not channels_NKT.size(1):
        return {}
    codes_NTK = channels_NKT.transpose(1, 2).contiguous()
    bits_NTK = (codes_NTK & (2**LOGPROB_BITS - 1)).to(torch.int32)
    # the sign of int16 is its highest bit
    halves_NTK = torch.where(bits_NTK >= 2**15, bits_NTK - 2**16, bits_NTK).to(torch.int16)
    return {
        TAUGHT_IDS: codes_NTK >> LOGPROB_BITS,
        TAUGHT_LOGPROBS: halves_NTK.view(torch.float16).float(),
    }
