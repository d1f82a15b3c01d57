"""Residual networks in torch, with torchvision's names, and their ONNX files from torch's exporter.

torchvision itself is not needed: its wheels are tied to one build of torch.
"""

import io
import warnings

from tests.peers import peer


def resnet(depths, bottleneck, width, stem="cifar", classes=10, activation="relu", seed=0):
    """Return a torch ResNet; `width` is the number of channels of the first stage."""
    torch = peer("torch")
    nn = torch.nn
    act = {"relu": nn.functional.relu, "silu": nn.functional.silu}[activation]
    expansion = 4 if bottleneck else 1

    class Block(nn.Module):
        def __init__(self, inputs, planes, stride):
            super().__init__()
            sizes = [(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)]
            outs = [planes] * (len(sizes) - 1) + [planes * expansion]
            ins = [inputs, *outs[:-1]]
            for i, ((size, step), a, b) in enumerate(zip(sizes, ins, outs, strict=True), 1):
                conv = nn.Conv2d(a, b, size, step, size // 2, bias=False)
                setattr(self, f"conv{i}", conv)
                setattr(self, f"bn{i}", nn.BatchNorm2d(b))
            self.count = len(sizes)
            self.downsample = None
            if stride != 1 or inputs != outs[-1]:
                shortcut = nn.Conv2d(inputs, outs[-1], 1, stride, bias=False)
                self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outs[-1]))

        def forward(self, x):
            y = x
            for i in range(1, self.count + 1):
                y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
                y = act(y) if i < self.count else y
            return act(y + (x if self.downsample is None else self.downsample(x)))

    class ResNet(nn.Module):
        def __init__(self):
            super().__init__()
            imagenet = stem == "imagenet"
            size, step, pad = (7, 2, 3) if imagenet else (3, 1, 1)
            self.conv1 = nn.Conv2d(3, width, size, step, pad, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.pool = nn.MaxPool2d(3, 2, 1) if imagenet else nn.Identity()
            inputs = width
            self.stages = len(depths)
            for i, depth in enumerate(depths):
                blocks = []
                for j in range(depth):
                    planes = width * 2**i
                    blocks.append(Block(inputs, planes, 2 if i and not j else 1))
                    inputs = planes * expansion
                setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
            self.fc = nn.Linear(inputs, classes)

        def forward(self, x):
            x = self.pool(act(self.bn1(self.conv1(x))))
            for i in range(self.stages):
                x = getattr(self, f"layer{i + 1}")(x)
            return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))

    torch.manual_seed(seed)
    return ResNet()


def resnet18(**options):
    return resnet((2, 2, 2, 2), False, **options)


def resnet50(**options):
    return resnet((3, 4, 6, 3), True, **options)


def export(model, x, form):
    """Export a torch model in form "TRAINING" or "EVAL"; also return the statistics in the file."""
    import onnx  # the networks alone need torch only

    torch = peer("torch")
    buffer = io.BytesIO()
    training = getattr(torch.onnx.TrainingMode, form)
    model.train(form == "TRAINING")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Tracing in training form runs the model: it must not move the statistics.
        state = {k: v.clone() for k, v in model.state_dict().items()}
        torch.onnx.export(
            model,
            (x,),
            buffer,
            dynamo=False,
            training=training,
            do_constant_folding=False,
            input_names=["input"],
            output_names=["logits"],
            opset_version=17,
        )
        exported = {k: v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(state)
    return onnx.load_from_string(buffer.getvalue()), exported
