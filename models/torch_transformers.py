"""The transformers of this package in torch, as one writes them by hand.

Attention is torch's one function for it, where a file has an operator for each part. A network is
made of a file's weights, by their names and shapes; only the heads are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

Weights = Mapping[str, torch.Tensor]


class SelfAttention(nn.Module):
    """Queries, keys and values by one linear map; the names are those of torch's own."""

    def __init__(self, width: int, heads: int, is_causal: bool = False):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.in_proj_weight = nn.Parameter(nn.Linear(width, 3 * width).weight.detach())
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The attention of each position to the others, of (batch, length, width)."""
        batch, length, width = x.shape
        joined = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        split = joined.reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out_proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer block, with norms in front or behind.

    Parameters
    ----------
    width, heads, feed_forward : int
    norm_first, is_causal : bool
    approximate : 'none' or 'tanh'
        Which GELU.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        feed_forward: int,
        norm_first: bool = True,
        is_causal: bool = False,
        approximate: str = "none",
    ):
        super().__init__()
        self.norm_first, self.gelu = norm_first, partial(gelu, approximate=approximate)
        self.self_attn = SelfAttention(width, heads, is_causal)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, feed_forward)
        self.linear2 = nn.Linear(feed_forward, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the block makes of (batch, length, width)."""
        if self.norm_first:
            x = x + self.self_attn(self.norm1(x))
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self.self_attn(x))
        return self.norm2(x + self._feed(x))

    def _feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(self.gelu(self.linear1(x)))


class TransformerEncoder(nn.Module):
    """Blocks, the mean over the sequence, and a linear layer."""

    def __init__(self, weights: Weights, heads: int):
        super().__init__()
        norm_first = "norm.weight" in weights
        self.layers = _blocks(weights, heads, norm_first=norm_first)
        if norm_first:
            self.norm = _norm(weights)
        self.classifier = _linear(weights, "classifier")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes)."""
        x = self.layers(x)
        return self.classifier((self.norm(x) if hasattr(self, "norm") else x).mean(1))


class Bert(nn.Module):
    """Words and positions, normalized; blocks; a classifier of the first position."""

    def __init__(self, weights: Weights, heads: int):
        super().__init__()
        self.words, self.positions = _table(weights, "words"), _table(weights, "positions")
        self.norm, self.layers = _norm(weights), _blocks(weights, heads, norm_first=False)
        self.pooler, self.classifier = _linear(weights, "pooler"), _linear(weights, "classifier")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes)."""
        x = self.layers(self.norm(self.words(tokens) + self.positions.weight))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class GPT2(nn.Module):
    """Words and positions; blocks that see what came before; the words once more as the head."""

    def __init__(self, weights: Weights, heads: int):
        super().__init__()
        self.words, self.positions = _table(weights, "words"), _table(weights, "positions")
        self.layers = _blocks(weights, heads, is_causal=True, approximate="tanh")
        self.norm = _norm(weights)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch · length, words)."""
        x = self.norm(self.layers(self.words(tokens) + self.positions.weight))
        return nn.functional.linear(x, self.words.weight).flatten(0, 1)


class VisionTransformer(nn.Module):
    """Patches as positions, and one more in front, which is classified."""

    def __init__(self, weights: Weights, heads: int):
        super().__init__()
        width, channels, patch, _ = weights["patch.weight"].shape
        self.patch = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = _table(weights, "positions")
        self.layers = _blocks(weights, heads)
        self.norm, self.head = _norm(weights), _linear(weights, "head")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (batch, classes)."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions.weight
        return self.head(self.norm(self.layers(x))[:, 0])


class GroupedAttention(nn.Module):
    """Causal attention with rotated queries and keys; several queries share a head of keys."""

    def __init__(self, width: int, heads: int, groups: int):
        super().__init__()
        self.depth = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.depth, bias=False)
        self.v_proj = nn.Linear(width, groups * self.depth, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """The attention to earlier positions; `angles` are cosines and sines by position."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.depth)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (y * angles[0] + _half_turned(y) * angles[1] for y in (q, k))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class GatedBlock(nn.Module):
    """A block of a `Llama`."""

    def __init__(self, width: int, heads: int, groups: int, feed_forward: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.self_attn = GroupedAttention(width, heads, groups)
        self.gate_proj, self.up_proj = (
            nn.Linear(width, feed_forward, bias=False) for _ in range(2)
        )
        self.down_proj = nn.Linear(feed_forward, width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """What the block makes of (batch, length, width)."""
        x = x + self.self_attn(self.norm1(x), angles)
        y = self.norm2(x)
        return x + self.down_proj(silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    """Words; blocks with rotary positions; a head of its own."""

    def __init__(self, weights: Weights, heads: int):
        super().__init__()
        self.words = _table(weights, "words")
        width = self.words.embedding_dim
        depth = width // heads
        groups = len(weights["layers.0.self_attn.k_proj.weight"]) // depth
        feed_forward = len(weights["layers.0.up_proj.weight"])
        self.layers = nn.ModuleList(
            GatedBlock(width, heads, groups, feed_forward) for _ in range(_depth(weights))
        )
        self.norm = nn.RMSNorm(width, 1e-5)
        self.head = nn.Linear(width, len(weights["head.weight"]), bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, depth, 2, dtype=torch.float64) / depth)
        self.register_buffer("frequencies", frequencies.repeat(2), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch · length, words)."""
        x = self.words(tokens)
        angles = torch.outer(torch.arange(tokens.shape[1], dtype=torch.float64), self.frequencies)
        turns = torch.stack([angles.cos(), angles.sin()]).to(x.dtype)
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x)).flatten(0, 1)


TRANSFORMERS = {
    "transformer_encoder": TransformerEncoder,
    "bert": Bert,
    "gpt2": GPT2,
    "vit": VisionTransformer,
    "llama": Llama,
}
"""By the name of the graph."""


def transformer(name: str, weights: Weights, heads: int) -> nn.Module:
    """The network that a file's weights belong to, with their values, in training mode.

    Parameters
    ----------
    name : str
        Of the graph: one of `TRANSFORMERS`.
    weights : mapping of str to tensor
        By the names of the file.
    heads : int
        Heads of attention, of queries.

    Raises
    ------
    ValueError
        The weights are those of another network.
    """
    try:
        network = TRANSFORMERS[name](weights, heads)
        network.to(next(iter(weights.values())).dtype).load_state_dict(dict(weights))
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"the weights are not those of {name}: {error}") from error
    return network.train()


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([-high, low], -1)


def _depth(weights: Weights) -> int:
    return len({name.split(".")[1] for name in weights if name.startswith("layers.")})


def _blocks(weights: Weights, heads: int, **options: bool | str) -> nn.Sequential:
    feed_forward, width = weights["layers.0.linear1.weight"].shape
    count = _depth(weights)
    return nn.Sequential(*[Block(width, heads, feed_forward, **options) for _ in range(count)])


def _table(weights: Weights, name: str) -> nn.Embedding:
    return nn.Embedding(*weights[f"{name}.weight"].shape)


def _linear(weights: Weights, name: str) -> nn.Linear:
    given, taken = weights[f"{name}.weight"].shape
    return nn.Linear(taken, given)


def _norm(weights: Weights) -> nn.LayerNorm:
    return nn.LayerNorm(len(weights["norm.weight"]))
