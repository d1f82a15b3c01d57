"""Networks on sequences, points and graphs, in torch and at small width, for export."""

from tests.peers import peer


def gpt():
    """A decoder that sees what came before (Radford et al., 2019), for 7 tokens of 30 words."""
    torch = peer("torch")
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, width, heads=3):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.register_buffer("past", torch.tril(torch.ones(7, 7)).bool())

        def attend(self, x):
            n, length, width = x.shape
            split = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads)
            q, k, v = split.permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
            scores = scores.masked_fill(~self.past[:length, :length], float("-inf"))
            y = scores.softmax(-1) @ v
            return self.out(y.transpose(1, 2).reshape(n, length, width))

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            y = nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh")
            return x + self.down(y)

    class Decoder(nn.Module):
        def __init__(self, width=12):
            super().__init__()
            self.words = nn.Embedding(30, width)
            self.positions = nn.Parameter(torch.randn(7, width))
            self.block = Block(width)
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens):
            x = self.words(tokens) + self.positions[: tokens.shape[1]]
            # The weights of the words read and of those predicted are the same.
            return self.norm(self.block(x)) @ self.words.weight.T

    return Decoder()


def _recurrent_classifier(kind, **options):
    torch = peer("torch")
    nn = torch.nn

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(30, 6)
            self.cells = getattr(nn, kind)(6, 5, batch_first=True, **options)
            self.head = nn.Linear(10 if options.get("bidirectional") else 5, 10)

        def forward(self, tokens):
            return self.head(self.cells(self.words(tokens))[0][:, -1])

    return Classifier()


def lstm():
    """A classifier of 7 tokens by two layers of LSTM (Hochreiter and Schmidhuber, 1997)."""
    return _recurrent_classifier("LSTM", num_layers=2)


def gru():
    """A classifier of 7 tokens by a GRU in both directions (Cho et al., 2014)."""
    return _recurrent_classifier("GRU", bidirectional=True)


def wavenet():
    """Dilated causal convolutions, gated (van den Oord et al., 2016), for 16 samples."""
    torch = peer("torch")
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self, channels, dilation):
            super().__init__()
            self.reach = dilation
            self.gated = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
            self.split = nn.Conv1d(channels, 2 * channels, 1)

        def forward(self, x):
            content, gate = self.gated(nn.functional.pad(x, (self.reach, 0))).chunk(2, dim=1)
            residual, skip = self.split(torch.tanh(content) * torch.sigmoid(gate)).chunk(2, dim=1)
            return x + residual, skip

    class WaveNet(nn.Module):
        def __init__(self, channels=4):
            super().__init__()
            self.first = nn.Conv1d(2, channels, 1)
            self.layers = nn.ModuleList([Layer(channels, d) for d in (1, 3)])
            self.last = nn.Sequential(nn.SiLU(), nn.Conv1d(channels, 10, 1))

        def forward(self, x):
            x = total = self.first(x)
            for layer in self.layers:
                x, skip = layer(x)
                total = total + skip
            return self.last(x + total)

    return WaveNet()


def pointnet():
    """Points by a shared perceptron and their maximum (Qi et al., 2017), for 12 points."""
    torch = peer("torch")
    nn = torch.nn

    def shared(a, b):
        return [nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()]

    class Alignment(nn.Module):
        def __init__(self):
            super().__init__()
            self.points = nn.Sequential(*shared(3, 8))
            self.matrix = nn.Linear(8, 9)

        def forward(self, x):
            matrix = self.matrix(self.points(x).amax(2)).reshape(-1, 3, 3)
            return torch.bmm(matrix + torch.eye(3, dtype=x.dtype), x)

    class PointNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.align = Alignment()
            self.points = nn.Sequential(*shared(3, 8), *shared(8, 12))
            self.head = nn.Linear(12, 10)

        def forward(self, x):
            return self.head(self.points(self.align(x)).max(2)[0])

    return PointNet()


def graph():
    """Messages along edges, added up at their ends (Gilmer et al., 2017), for 9 nodes."""
    torch = peer("torch")
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

        def forward(self, x, sources, targets):
            ends = torch.cat([x[sources], x[targets]], 1)
            messages = nn.functional.silu(self.message(ends))
            places = targets[:, None].expand(-1, x.shape[1])
            received = torch.zeros_like(x).scatter_add(0, places, messages)
            return x + torch.tanh(self.update(torch.cat([x, received], 1)))

    class GraphNetwork(nn.Module):
        def __init__(self, width=6):
            super().__init__()
            self.first, self.head = nn.Linear(4, width), nn.Linear(width, 3)
            self.layers = nn.ModuleList([Layer(width), Layer(width)])

        def forward(self, x, sources, targets):
            x = self.first(x)
            for layer in self.layers:
                x = layer(x, sources, targets)
            return self.head(x)

    return GraphNetwork()
