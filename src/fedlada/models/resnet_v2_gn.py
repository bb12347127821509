"""ResNet-18 v2 with GroupNorm: the architecture of Reddi et al. (2021)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedlada.models.image_shape import image_shape
from fedlada.models.layers import GroupNorm


class PreActivationBlock(nn.Module):
    """Two 3x3 convolutions, each after a GroupNorm and ReLU, and a shortcut around both."""

    def __init__(self, before: int, after: int, num_groups: int, *, is_first: bool) -> None:
        super().__init__()
        # The stem of the network has normalised already.
        self.norm1 = None if is_first else GroupNorm(num_groups, before, eps=1e-3)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm2 = GroupNorm(num_groups, after, eps=1e-3)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, bias=False), GroupNorm(num_groups, after, eps=1e-3)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the convolutions to the shortcut."""
        y = self.conv1(x if self.norm1 is None else self.norm1(x, relu=True))
        result: Tensor = self.conv2(self.norm2(y, relu=True)) + self.shortcut(x)
        return result


class ResNet18V2GN(nn.Module):
    """Four stages of two blocks at one resolution; see `resnet18_v2_gn`."""

    def __init__(self, num_classes: int, in_channels: int, width: int, num_groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        self.norm = GroupNorm(num_groups, width, eps=1e-3)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        blocks: list[nn.Module] = []
        before = width
        for after in (width, 2 * width, 4 * width, 8 * width):
            blocks.append(PreActivationBlock(before, after, num_groups, is_first=not blocks))
            blocks.append(PreActivationBlock(after, after, num_groups, is_first=False))
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.last_norm = GroupNorm(num_groups, before, eps=1e-3)
        self.head = nn.Linear(before, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = self.pool(self.norm(self.conv(x), relu=True))
        x = self.last_norm(self.blocks(x), relu=True)
        scores: Tensor = self.head(x.mean(dim=(2, 3)))
        return scores


def resnet18_v2_gn(
    num_classes: int = 10, *, input_shape: Sequence[int] = (3, 32, 32), width: int = 64, num_groups: int = 2
) -> ResNet18V2GN:
    """ResNet-18 v2 (norm and ReLU before each convolution) with GroupNorm.

    The stem quarters the resolution, as ImageNet's does. No later stage halves it again: so it is in the code of Reddi
    et al. Theirs pads the stem on one side more than on the other, and draws weights from a truncated normal.

    Args:
        num_classes: the number of outputs; with ten there are 11,181,642 parameters.
        input_shape: channels, height and width of an image; only the channels matter here.
        width: channels of the first stage; each later one has twice as many.
        num_groups: groups of each GroupNorm.
    """
    return ResNet18V2GN(num_classes, image_shape("resnet18_v2_gn", input_shape)[0], width, num_groups)
