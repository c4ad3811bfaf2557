"""Networks in plain torch, readable top to bottom: what closed forms and the tracer are checked against.

Each takes its dimensions and nothing else; build large ones on the meta device. `x` is (batch, seq, hidden) unless
a docstring says otherwise.
"""

from tests.reference_modules.bert import BertLayer, BertModel
from tests.reference_modules.gpt import GPT, GPTBlock
from tests.reference_modules.heads import window_mask
from tests.reference_modules.llama import LatentAttention, Llama, LlamaAttention, LlamaBlock, MoE, SwiGLU
from tests.reference_modules.mamba import Mamba2, Mamba2Layer, Mamba2Mixer
from tests.reference_modules.t5 import T5, T5Attention, T5Layer
from tests.reference_modules.vision import Bottleneck, ResNet, ViT, ViTBlock

__all__ = [
    "GPT",
    "T5",
    "BertLayer",
    "BertModel",
    "Bottleneck",
    "GPTBlock",
    "LatentAttention",
    "Llama",
    "LlamaAttention",
    "LlamaBlock",
    "Mamba2",
    "Mamba2Layer",
    "Mamba2Mixer",
    "MoE",
    "ResNet",
    "SwiGLU",
    "T5Attention",
    "T5Layer",
    "ViT",
    "ViTBlock",
    "window_mask",
]
