"""The architectures that people train, in torch and at small width, to be exported to ONNX."""

from tests.peers import peer


def vgg_bn():
    """Stacked convolutions with batch norm (Simonyan and Zisserman, 2015), for 16×16 images."""
    nn = peer("torch").nn
    layers, channels = [], 3
    for width in (8, "pool", 12, 12, "pool", 16, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    head = [nn.Flatten(), nn.Linear(16 * 4, 20), nn.ReLU(), nn.Dropout(0.0), nn.Linear(20, 10)]
    return nn.Sequential(*layers, *head)


def densenet():
    """Each layer reads all before it (Huang et al., 2017), for 16×16 images."""
    torch = peer("torch")
    nn = torch.nn

    class Layer(nn.Module):
        def __init__(self, channels, growth=6):
            super().__init__()
            self.norm1, self.conv1 = (
                nn.BatchNorm2d(channels),
                nn.Conv2d(channels, 12, 1, bias=False),
            )
            self.norm2, self.conv2 = nn.BatchNorm2d(12), nn.Conv2d(12, growth, 3, 1, 1, bias=False)

        def forward(self, x):
            y = self.conv1(torch.relu(self.norm1(x)))
            return torch.cat([x, self.conv2(torch.relu(self.norm2(y)))], 1)

    def transition(a, b):
        return nn.Sequential(nn.BatchNorm2d(a), nn.ReLU(), nn.Conv2d(a, b, 1), nn.AvgPool2d(2))

    blocks = [nn.Conv2d(3, 8, 3, 1, 1, bias=False), Layer(8), Layer(14), transition(20, 10)]
    blocks += [Layer(10), Layer(16), nn.BatchNorm2d(22), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(22, 10))


def mobilenet_v2():
    """Inverted residuals with depthwise convolutions (Sandler et al., 2018), for 16×16 images."""
    nn = peer("torch").nn

    def unit(a, b, size, stride=1, groups=1):
        conv = nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(b), nn.ReLU6()]

    class Inverted(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            wide = a * 3
            self.shortcut = stride == 1 and a == b
            self.conv = nn.Sequential(
                *unit(a, wide, 1),
                *unit(wide, wide, 3, stride, wide),
                nn.Conv2d(wide, b, 1, bias=False),
                nn.BatchNorm2d(b),
            )

        def forward(self, x):
            return x + self.conv(x) if self.shortcut else self.conv(x)

    blocks = [Inverted(8, 8, 1), Inverted(8, 12, 2), Inverted(12, 12, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(24, 10)]
    return nn.Sequential(*unit(3, 8, 3, 2), *blocks, *unit(12, 24, 1), *head)


def inception():
    """Branches of several window sizes, joined (Szegedy et al., 2015), for 16×16 images."""
    torch = peer("torch")
    nn = torch.nn

    def unit(a, b, size, **options):
        conv = nn.Conv2d(a, b, size, bias=False, **options)
        return nn.Sequential(conv, nn.BatchNorm2d(b, eps=0.001), nn.ReLU())

    class Mixed(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.branch1 = unit(channels, 4, 1)
            self.branch2 = nn.Sequential(unit(channels, 3, 1), unit(3, 5, 3, padding=1))
            tall, wide = {"padding": (2, 0)}, {"padding": (0, 2)}
            self.branch3 = nn.Sequential(
                unit(channels, 3, (5, 1), **tall), unit(3, 4, (1, 5), **wide)
            )
            self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(channels, 3, 1))
            self.max = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), unit(channels, 2, 1))

        def forward(self, x):
            branches = (self.branch1, self.branch2, self.branch3, self.pool, self.max)
            return torch.cat([branch(x) for branch in branches], 1)

    stem = [unit(3, 6, 3, stride=2), nn.MaxPool2d(3, 2, ceil_mode=True), Mixed(6), Mixed(18)]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 10))


def attention_block(width, heads, activation="gelu", norm_first=True):
    """Return a transformer block, written out so that its trace holds plain operators."""
    torch = peer("torch")
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            self.drop = nn.Dropout(0.0)

        def attend(self, x, mask):
            b, n, c = x.shape
            q, k, v = self.qkv(x).reshape(b, n, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-2, -1) * (c // heads) ** -0.5
            if mask is not None:
                scores = scores.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
            y = self.drop(scores.softmax(-1)) @ v
            return self.out(y.transpose(1, 2).reshape(b, n, c))

        def feed(self, x):
            return self.down(getattr(nn.functional, activation)(self.up(x)))

        def forward(self, x, mask=None):
            if norm_first:
                x = x + self.attend(self.norm1(x), mask)
                return x + self.feed(self.norm2(x))
            x = self.norm1(x + self.attend(x, mask))
            return self.norm2(x + self.feed(x))

    return Block()


def vit():
    """Patches as tokens (Dosovitskiy et al., 2021), for 16×16 images."""
    torch = peer("torch")
    nn = torch.nn

    class VisionTransformer(nn.Module):
        def __init__(self, width=12):
            super().__init__()
            self.patch = nn.Conv2d(3, width, 4, 4)
            self.token = nn.Parameter(torch.randn(1, 1, width))
            self.position = nn.Parameter(torch.randn(1, 17, width))
            self.blocks = nn.ModuleList([attention_block(width, 3) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)[:, 0])

    return VisionTransformer()


def bert():
    """A bidirectional encoder with a mask (Devlin et al., 2019), for 7 tokens of 30 words."""
    torch = peer("torch")
    nn = torch.nn

    class Encoder(nn.Module):
        def __init__(self, width=12):
            super().__init__()
            self.words, self.positions = nn.Embedding(30, width), nn.Embedding(7, width)
            self.norm = nn.LayerNorm(width, eps=1e-12)
            self.blocks = nn.ModuleList(
                [attention_block(width, 3, norm_first=False) for _ in range(2)]
            )
            self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 10)

        def forward(self, tokens, mask):
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.norm(self.words(tokens) + self.positions(places))
            for block in self.blocks:
                x = block(x, mask)
            return self.head(torch.tanh(self.pool(x[:, 0])))

    return Encoder()


def unet():
    """Down, up again, and across (Ronneberger et al., 2015), for 16×16 images."""
    torch = peer("torch")
    nn = torch.nn

    def double(a, b):
        unit = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(*unit, nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(2, b), nn.SiLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = nn.MaxPool2d(2)
            self.one, self.two, self.three = double(3, 4), double(4, 6), double(6, 8)
            self.up1, self.right1 = nn.ConvTranspose2d(8, 6, 2, 2), double(12, 6)
            self.up2 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
            self.right2, self.head = double(10, 4), nn.Conv2d(4, 10, 1)

        def forward(self, x):
            one = self.one(x)
            two = self.two(self.pool(one))
            deep = self.three(self.pool(two))
            y = self.right1(torch.cat([self.up1(deep), two], 1))
            return self.head(self.right2(torch.cat([self.up2(y), one], 1)))

    return UNet()
