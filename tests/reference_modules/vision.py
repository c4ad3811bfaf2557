"""Vision: ViT (arXiv 2010.11929), ResNet (arXiv 1512.03385)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.reference_modules.heads import merge_heads, split_heads


class ViT(nn.Module):
    """Patch convolution, class token, pre-LN blocks without mask, classifier. images (b, 3, size, size)."""

    def __init__(
        self, layers: int, hidden: int, heads: int, ffn: int, size: int = 224, patch: int = 16, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, hidden))
        self.blocks = nn.ModuleList(ViTBlock(hidden, heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden, eps=1e-6), nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ViTBlock(nn.Module):
    """Pre-LN encoder block."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(hidden, eps=1e-6), nn.LayerNorm(hidden, eps=1e-6)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(t, self.heads) for t in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        x = x + self.out(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with batch norms and a shortcut. x (b, channels, height, width)."""

    def __init__(self, channels: int, width: int, out: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.norm2, self.norm3 = nn.BatchNorm2d(width), nn.BatchNorm2d(out)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        same = channels == out and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, `stages` of bottlenecks (ResNet-50: 3, 4, 6, 3), classifier. images (b, 3, size, size)."""

    def __init__(self, stages: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential()
        channels = width
        for n, count in enumerate(stages):
            inner = width * 2**n
            for i in range(count):
                self.blocks.append(Bottleneck(channels, inner, 4 * inner, 2 if n and not i else 1))
                channels = 4 * inner
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(images))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))
