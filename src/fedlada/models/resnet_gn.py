"""ResNet-18 with GroupNorm in the place of BatchNorm, as the paper trains it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedlada.methods.validation import one_of
from fedlada.models.image_shape import image_shape
from fedlada.models.layers import GroupNorm


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. Names are torchvision's, so that its weights load."""

    def __init__(self, before: int, after: int, stride: int, num_groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = GroupNorm(num_groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = GroupNorm(num_groups, after)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            shortcut = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, GroupNorm(num_groups, after))

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the convolutions to the shortcut."""
        y = self.bn1(self.conv1(x), relu=True)
        result: Tensor = self.bn2(self.conv2(y), add=self.downsample(x), relu=True)
        return result


class ResNet18GN(nn.Module):
    """Four stages of two blocks; see `resnet18_gn`."""

    def __init__(self, num_classes: int, in_channels: int, stem: str, num_groups: int) -> None:
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = GroupNorm(num_groups, 64)
        self.layer1 = _stage(64, 64, 1, num_groups)
        self.layer2 = _stage(64, 128, 2, num_groups)
        self.layer3 = _stage(128, 256, 2, num_groups)
        self.layer4 = _stage(256, 512, 2, num_groups)
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = self.maxpool(self.bn1(self.conv1(x), relu=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))
        return scores


def resnet18_gn(
    num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32), stem: str = "imagenet", num_groups: int = 2
) -> ResNet18GN:
    """ResNet-18 with GroupNorm; initialised like torchvision's.

    Args:
        num_classes: the number of outputs; with ten there are 11,181,642 parameters.
        input_shape: channels, height and width of an image; only the channels matter here.
        stem: "imagenet" is the 7x7 convolution with stride 2 and the max-pool, which the authors keep even for 32x32
            images; "cifar" is the 3x3 convolution that is usual for small images.
        num_groups: groups of each GroupNorm; the authors use 2.
    """
    one_of("stem", stem, ("imagenet", "cifar"))
    return ResNet18GN(num_classes, image_shape("resnet18_gn", input_shape)[0], stem, num_groups)


def _stage(before: int, after: int, stride: int, num_groups: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(before, after, stride, num_groups), BasicBlock(after, after, 1, num_groups))
