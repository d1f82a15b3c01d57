"""Further networks on images and their generators, in torch and at small width, for export."""

from tests.peers import peer


def squeeze_excitation(channels, squeezed, gate):
    """Return a layer of channels weighted by a gate of their means (Hu et al., 2018, section 3)."""
    nn = peer("torch").nn

    class SqueezeExcitation(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.reduce, self.expand = (
                nn.Conv2d(channels, squeezed, 1),
                nn.Conv2d(squeezed, channels, 1),
            )

        def forward(self, x):
            y = nn.functional.silu(self.reduce(self.pool(x)))
            return x * gate(self.expand(y))

    return SqueezeExcitation()


def inverted_residual(inputs, wide, outputs, size, stride, activation, gate):
    """Return an inverted residual whose wide part is squeezed and excited."""
    nn = peer("torch").nn

    class InvertedResidual(nn.Module):
        def __init__(self):
            super().__init__()
            self.has_shortcut = stride == 1 and inputs == outputs
            self.body = nn.Sequential(
                nn.Conv2d(inputs, wide, 1, bias=False),
                nn.BatchNorm2d(wide),
                activation(),
                nn.Conv2d(wide, wide, size, stride, size // 2, groups=wide, bias=False),
                nn.BatchNorm2d(wide),
                activation(),
                squeeze_excitation(wide, max(wide // 4, 2), gate),
                nn.Conv2d(wide, outputs, 1, bias=False),
                nn.BatchNorm2d(outputs),
            )

        def forward(self, x):
            return x + self.body(x) if self.has_shortcut else self.body(x)

    return InvertedResidual()


def mobilenet_v3():
    """Hard swish and hard sigmoid (Howard et al., 2019), for 8×8 images."""
    nn = peer("torch").nn

    def gate(x):  # as hardsigmoid, whose 1/6 an ONNX file would hold in float32
        return nn.functional.relu6(x + 3) / 6

    blocks = [
        inverted_residual(6, 12, 6, 3, 1, nn.ReLU, gate),
        inverted_residual(6, 16, 8, 5, 2, nn.Hardswish, gate),
    ]
    stem = [nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.Hardswish()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.Hardswish()]
    return nn.Sequential(*stem, *blocks, *head, nn.Linear(16, 10))


def efficientnet():
    """Mobile blocks with SiLU (Tan and Le, 2019), for 8×8 images."""
    torch = peer("torch")
    nn = torch.nn
    block = inverted_residual(6, 12, 6, 5, 1, nn.SiLU, torch.sigmoid)
    stem = [nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.SiLU()]
    head = [nn.Conv2d(6, 20, 1, bias=False), nn.BatchNorm2d(20), nn.SiLU()]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0)]
    return nn.Sequential(*stem, block, *head, *pool, nn.Linear(20, 10))


def convnext():
    """Large depthwise windows, channels last, scaled layers (Liu et al., 2022), for 8×8."""
    torch = peer("torch")
    nn = torch.nn

    class ChannelNorm(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
            self.norm = nn.LayerNorm(channels, eps=1e-6)
            self.up, self.down = (
                nn.Linear(channels, 4 * channels),
                nn.Linear(4 * channels, channels),
            )
            self.scale = nn.Parameter(0.5 + torch.rand(channels, 1, 1))

        def forward(self, x):
            y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            y = self.down(nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)
            return x + self.scale * y

    stem = [nn.Conv2d(3, 6, 2, 2), ChannelNorm(6, eps=1e-6)]
    deeper = [ChannelNorm(6, eps=1e-6), nn.Conv2d(6, 8, 2, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8, eps=1e-6), nn.Linear(8, 10)]
    return nn.Sequential(*stem, Block(6), *deeper, *head)


def shufflenet():
    """Half of the channels pass, and all are shuffled (Ma et al., 2018), for 8×8 images."""
    torch = peer("torch")
    nn = torch.nn

    def pointwise(a, b):
        return [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    def depthwise(a, stride):
        return [nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a)]

    class Unit(nn.Module):
        def __init__(self, inputs, half, stride):
            super().__init__()
            self.splits = stride == 1
            right = [*pointwise(inputs, half), *depthwise(half, stride), *pointwise(half, half)]
            self.right = nn.Sequential(*right)
            self.left = nn.Sequential(
                *([] if self.splits else [*depthwise(inputs, stride), *pointwise(inputs, half)])
            )

        def forward(self, x):
            left, right = x.chunk(2, dim=1) if self.splits else (x, x)
            y = torch.cat([self.left(left), self.right(right)], 1)
            n, c, h, w = y.shape
            return y.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    stem = [nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU()]
    body = [nn.MaxPool2d(3, 2, 1), Unit(6, 6, 2), Unit(6, 6, 1), *pointwise(12, 16)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def super_resolution():
    """Twice the resolution by sub-pixel convolution (Shi et al., 2016), of 8×8 images."""
    nn = peer("torch").nn
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2),
        nn.Tanh(),
        nn.Conv2d(8, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 4, 3, padding=1),
        nn.PixelShuffle(2),
    )


def dcgan():
    """The generator of 16×16 images from 6 numbers (Radford et al., 2016)."""
    nn = peer("torch").nn

    def up(a, b, size, stride, padding):
        conv = nn.ConvTranspose2d(a, b, size, stride, padding, bias=False)
        return [conv, nn.BatchNorm2d(b), nn.ReLU()]

    body = [*up(6, 10, 4, 1, 0), *up(10, 6, 4, 2, 1)]
    return nn.Sequential(*body, nn.ConvTranspose2d(6, 3, 4, 2, 1, bias=False), nn.Tanh())
