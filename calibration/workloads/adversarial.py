"""Adversarial learning: a Wasserstein GAN (arXiv 1701.07875) of DCGAN's networks (arXiv 1511.06434)."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibration.workloads.workload import Batch, Size, Workload

CLIP = 0.01
"""Largest weight of the critic (algorithm 1)."""

SLOPE = 0.2


def _generator(noise: int, width: int, side: int) -> nn.Sequential:
    """Return noise[b, noise, 1, 1] to images[b, 3, side, side] from 4 x 4 on, twice as large with every layer."""
    channels = width * side // 8
    layers = [nn.ConvTranspose2d(noise, channels, 4, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    while channels > width:
        up = nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False)
        layers += [up, nn.BatchNorm2d(channels // 2), nn.ReLU()]
        channels //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def _critic(width: int, side: int) -> nn.Sequential:
    """Return images to scores [b, 1, 1, 1]: the generator's layers the other way round."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(SLOPE)]
    channels = width
    while channels < width * side // 8:
        down = nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False)
        layers += [down, nn.BatchNorm2d(2 * channels), nn.LeakyReLU(SLOPE)]
        channels *= 2
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, bias=False))


class Wgan(nn.Module):
    """Generator and critic; weights are normal numbers of deviation 0.02, the critic's clipped."""

    def __init__(self, noise: int, width: int, side: int) -> None:
        super().__init__()
        self.generator, self.critic = _generator(noise, width, side), _critic(width, side)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, std=0.02)
        clip(self)


def clip(model: Wgan) -> None:
    """Clip the critic's weights, which keeps it Lipschitz."""
    with torch.no_grad():
        for weight in model.critic.parameters():
            weight.clamp_(-CLIP, CLIP)


def _loss(model: Wgan, batch: Batch) -> Tensor:
    """Return the critic's loss and the generator's in one: each network has the gradient of its own alone.

    Both are updated at once; the paper lets the critic take five steps for each of the generator's.
    """
    noise, real = batch
    made = model.generator(noise)
    critic: Tensor = model.critic(made.detach()).mean() - model.critic(real).mean()
    fixed = {name: weight.detach() for name, weight in model.critic.named_parameters()}
    scores: Tensor = functional_call(model.critic, fixed, (made,))
    return critic - scores.mean()


def _wgan(size: Size) -> Wgan:
    return Wgan(100, 64, 64) if size == "full" else Wgan(16, 8, 16)


def _batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    noise, side = (100, 64) if size == "full" else (16, 16)
    real = torch.rand(samples, 3, side, side, generator=generator)
    return torch.randn(samples, noise, 1, 1, generator=generator), 2 * real - 1


WORKLOADS = (
    Workload(
        name="wgan",
        domain="adversarial learning",
        paper="arXiv 1701.07875",
        parameters=6_342_272,
        samples={"tiny": 16, "full": 64},
        make=_wgan,
        draw=_batch,
        loss=_loss,
        after=clip,
    ),
)
