"""Small networks in torch, whose constants and parameters are easily taken for each other."""

import math

from tests.peers import peer

torch = peer("torch")
nn = torch.nn
F = nn.functional

VOCABULARY = 11


class GroupNorms(nn.Module):
    """Group norms, which exporters write by an instance norm of ones and zeros."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.conv(x))).mean((2, 3)))


class InstanceNorms(nn.Module):
    """Norms with and without weights; those of a fresh network are ones and zeros, too."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.plain = nn.InstanceNorm2d(4)
        self.slopes = nn.PReLU(4)
        self.centered = nn.LayerNorm(16, elementwise_affine=False)

    def forward(self, x):
        h = self.plain(self.slopes(self.norm(self.conv(x)))).flatten(2)
        return self.centered(h).flatten(1)


class BatchNorms(nn.Module):
    """Convolution, batch norm, and a perceptron with another one."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5, bias=False)
        self.norm1 = nn.BatchNorm1d(5, momentum=0.3)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        h = torch.tanh(self.norm(self.conv(x))).mean((2, 3))
        return self.head(torch.tanh(self.norm1(self.fc(h))))


class WindowAttention(nn.Module):
    """Attention in windows, as of Swin: a learned relative bias, and a mask of 0 and -100."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.proj = nn.Linear(8, 8)
        self.relative_position_bias_table = nn.Parameter(0.02 * torch.randn(9, 2))
        index = torch.tensor([[0, 1], [0, 0]])
        coords = torch.stack([index.flatten(), index.T.flatten()])
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + 1
        self.register_buffer("relative_position_index", relative[..., 0] * 3 + relative[..., 1])
        region = torch.tensor([[0.0, 0, 0, 0], [0, 0, 1, 1]])
        difference = region[:, None, :] - region[:, :, None]
        self.register_buffer("attn_mask", (difference != 0).float() * -100.0)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).reshape(4, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = (q * 0.5) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.reshape(-1)]
        scores = scores + bias.reshape(4, 4, 2).permute(2, 0, 1).contiguous()[None]
        scores = scores.reshape(2, 2, 2, 4, 4) + self.attn_mask[None, :, None]
        weights = scores.reshape(4, 2, 4, 4).softmax(-1)
        return x + self.proj((weights @ v).transpose(1, 2).reshape(4, 4, 8))


class Detector(nn.Module):
    """The head of a YOLO: anchors, a grid of cells and strides turn outputs to boxes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.head = nn.Conv2d(8, 3 * 5, 1)
        anchors = torch.tensor([[10.0, 13], [16, 30], [33, 23]])
        self.register_buffer("anchors", anchors / 8)
        self.register_buffer("anchor_grid", anchors.reshape(1, 3, 1, 1, 2))
        y, x = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
        self.grid = torch.stack([x, y], 2).reshape(1, 1, 4, 4, 2)
        self.stride = torch.tensor([2.0, 4.0])
        self.distances = torch.arange(5.0)

    def forward(self, x):
        h = self.head(F.silu(self.conv(x))).reshape(2, 3, 5, 4, 4).permute(0, 1, 3, 4, 2)
        y = h.sigmoid()
        xy = (y[..., 0:2] * 2 - 0.5 + self.grid) * self.stride
        wh = (y[..., 2:4] * 2) ** 2 * self.anchor_grid
        scaled = (y[..., 2:4] * 2) ** 2 * self.anchors.reshape(1, 3, 1, 1, 2)
        distance = h.softmax(-1) @ self.distances[:, None]
        return torch.cat([xy, wh, scaled, y[..., 4:], distance], -1).flatten(1)


class Rotary(nn.Module):
    """Causal attention with rotary tables, or frequencies from which the tables are computed."""

    def __init__(self, tables=True):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(8))
        self.qkv = nn.Linear(8, 24, bias=False)
        self.proj = nn.Linear(8, 8, bias=False)
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, 4, 2).float() / 4))
        angles = torch.outer(torch.arange(16).float(), frequencies)
        angles = torch.cat([angles, angles], -1)
        if tables:
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        else:
            self.register_buffer("inv_freq", frequencies, persistent=False)
        self.tables = tables

    def rotated(self, x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def forward(self, x):
        if self.tables:
            cos, sin = self.cos[:6], self.sin[:6]
        else:
            positions = torch.arange(x.shape[1], device=x.device)[None, None].float()
            angles = (self.inv_freq[None, :, None] @ positions).transpose(1, 2)
            angles = torch.cat([angles, angles], -1)
            cos, sin = angles.cos(), angles.sin()
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
        q, k, v = self.qkv(h).reshape(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
        scores = q @ k.transpose(-2, -1) / math.sqrt(4)
        mask = torch.full((6, 6), -torch.inf).triu(1)
        h = (scores + mask).softmax(-1) @ v
        return x + self.proj(h.transpose(1, 2).reshape(2, 6, 8))


class RotaryFrequencies(Rotary):
    """`Rotary` whose tables are computed from its frequencies."""

    def __init__(self):
        super().__init__(tables=False)


class Vit(nn.Module):
    """Class token, learned positions, layer scale as it starts: 1e-6 everywhere."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.register_tokens = nn.Parameter(0.02 * torch.randn(1, 2, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.norm = nn.LayerNorm(8)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)
        self.gamma = nn.Parameter(1e-6 * torch.ones(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls_token.expand(2, -1, -1), h], 1) + self.pos_embed
        h = torch.cat([h, self.register_tokens.expand(2, -1, -1)], 1)
        h = h + self.gamma * self.fc2(F.gelu(self.fc1(self.norm(h))))
        return self.head(h[:, 0])


class ConvNext(nn.Module):
    """Layer scale in channels first, an input that buffers normalize, a learned denominator."""

    def __init__(self):
        super().__init__()
        self.register_buffer("pixel_mean", torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
        self.register_buffer("pixel_std", torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))
        self.stem = nn.Conv2d(3, 8, 4, stride=4)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.layer_scale = nn.Parameter(torch.full((8, 1, 1), 1e-6))
        self.shift = nn.Parameter(torch.zeros(8))
        self.width = nn.Parameter(torch.ones(8))

    def forward(self, x):
        h = self.stem((x - self.pixel_mean) / self.pixel_std)
        h = h + self.layer_scale * self.pointwise(F.gelu(self.depthwise(h)))
        return (h.mean((2, 3)) - self.shift) / self.width


class Contrastive(nn.Module):
    """Two towers and a learned temperature, a single number."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 4, bias=False), nn.Linear(5, 4, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.logit_bias = nn.Parameter(torch.tensor([-10.0]))

    def forward(self, x, y):
        x, y = F.normalize(self.left(x), dim=-1), F.normalize(self.right(y), dim=-1)
        return self.logit_scale.exp() * x @ y.T + self.logit_bias


class Gpt(nn.Module):
    """A decoder: a causal mask in two manners, positions in two, an embedding tied to the head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.positions = nn.Parameter(0.02 * torch.randn(6, 8))
        angles = torch.arange(6.0)[:, None] * torch.exp(
            torch.arange(0, 8, 2) * (-math.log(10000.0) / 8)
        )
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], 2).reshape(1, 6, 8))
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("tril", torch.ones(6, 6).tril())
        self.register_buffer("causal", torch.full((6, 6), -1e9).triu(1))
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def attention(self, x, first):
        q, k, v = self.qkv(x).reshape(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / 2
        if first:
            scores = scores.masked_fill(self.tril == 0, -torch.inf)
        else:
            scores = scores * self.tril - 1e4 * (1 - self.tril) + self.causal
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 8))

    def forward(self, tokens):
        h = self.embedding(tokens) + self.positions + self.pe
        h = h + self.attention(h, True)
        return self.head(self.norm(h + self.attention(h, False)))


class Encoder(nn.Module):
    """PyTorch's own transformer layer under its causal mask."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return self.norm(self.layer(x, src_mask=mask))


class WeightNorms(nn.Module):
    """Weights that are computed from a direction and lengths, one for each row, or one for all."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(5, 2), dim=None)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class SpectralNorms(nn.Module):
    """A weight that is divided by its largest singular value, with vectors in two buffers."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5))
        self.second = nn.Linear(5, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Recurrent(nn.Module):
    """Embedding, LSTM and GRU, whose states start as zeros, and a learned start."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.start = nn.Parameter(torch.zeros(1, 1, 5))
        self.gru = nn.GRU(5, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, tokens):
        h, _ = self.lstm(self.embedding(tokens))
        h, _ = self.gru(h + self.start)
        return self.head(h[:, -1])


INPUTS = {
    GroupNorms: {"x": (2, 3, 6, 6)},
    InstanceNorms: {"x": (2, 3, 6, 6)},
    BatchNorms: {"x": (4, 3, 6, 6)},
    WindowAttention: {"x": (4, 4, 8)},
    Detector: {"x": (2, 3, 8, 8)},
    Rotary: {"x": (2, 6, 8)},
    RotaryFrequencies: {"x": (2, 6, 8)},
    Vit: {"x": (2, 3, 8, 8)},
    ConvNext: {"x": (2, 3, 8, 8)},
    Contrastive: {"x": (3, 6), "y": (3, 5)},
    Gpt: {"tokens": (2, 6)},
    Encoder: {"x": (2, 5, 8)},
    WeightNorms: {"x": (3, 6)},
    SpectralNorms: {"x": (3, 6)},
    Recurrent: {"tokens": (2, 6)},
}
"""The networks, and the shapes of their inputs; tokens are below `VOCABULARY`."""
