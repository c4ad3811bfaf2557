"""Reinforcement learning: an actor and critic like A3C's (arXiv 1602.01783) with n-step returns, playing a generated
game."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibration.workloads.workload import Batch, Size, Workload

ACTIONS, FRAMES, STEPS = 3, 4, 5
"""Left, stay, right; frames that an observation stacks; steps of a return (section 8 of the paper's supplement)."""

DISCOUNT, ENTROPY, VALUE = 0.99, 0.01, 0.5
ROWS = 21
"""Rows and columns of the game."""


class ActorCritic(nn.Module):
    """observations[b, 4, side, side] to logits of the actions [b, 3] and values [b] (section 5.1)."""

    def __init__(self, side: int, channels: int, hidden: int) -> None:
        super().__init__()
        left = ((side - 8) // 4 + 1 - 4) // 2 + 1
        self.body = nn.Sequential(
            nn.Conv2d(FRAMES, channels, 8, 4), nn.ReLU(), nn.Conv2d(channels, 2 * channels, 4, 2), nn.ReLU(),
            nn.Flatten(), nn.Linear(2 * channels * left**2, hidden), nn.ReLU(),
        )  # fmt: skip
        self.policy, self.value = nn.Linear(hidden, ACTIONS), nn.Linear(hidden, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values."""
        x = self.body(observations)
        return self.policy(x), self.value(x)[:, 0]


def played(games: int, side: int, generator: torch.Generator) -> Batch:
    """Return what a random player sees and gets in `games` games of catch, from any moment of them.

    A ball falls a row each step, a paddle in the last row moves left or right; the reward is 1 for a ball that is
    caught and -1 for one that is lost, after which the next one begins. Frames show the last `FRAMES` moments.

    Returns: observations [b, STEPS + 1, FRAMES, side, side], actions [b, STEPS], rewards, and 0 where a ball ended.
    """
    ball, column, paddle = (torch.randint(ROWS, (games,), generator=generator) for _ in range(3))
    screens, actions, rewards, going = [], [], [], []
    for _ in range(FRAMES + STEPS):
        screens.append(_screen(ball, column, paddle, side))
        action = torch.randint(ACTIONS, (games,), generator=generator)
        paddle = (paddle + action - 1).clamp(0, ROWS - 1)
        ended = ball == ROWS - 1
        rewards.append(torch.where(ended, torch.where(column == paddle, 1.0, -1.0), 0.0))
        actions.append(action)
        going.append((~ended).float())
        ball = torch.where(ended, 0, ball + 1)
        column = torch.where(ended, torch.randint(ROWS, (games,), generator=generator), column)
    seen = torch.stack(screens, 1).unfold(1, FRAMES, 1).movedim(-1, 2)
    begin = FRAMES - 1
    made = (torch.stack(each, 1)[:, begin : begin + STEPS] for each in (actions, rewards, going))
    return seen.contiguous(), *made


def _screen(ball: Tensor, column: Tensor, paddle: Tensor, side: int) -> Tensor:
    """Return pictures [b, side, side] of ball and paddle, as large squares as fit."""
    at = torch.arange(side) * ROWS // side
    rows, columns = at[:, None], at[None]
    shown = (rows == ball[:, None, None]) & (columns == column[:, None, None])
    return (shown | ((rows == ROWS - 1) & (columns == paddle[:, None, None]))).float()


def returns(rewards: Tensor, going: Tensor, last: Tensor) -> Tensor:
    """Return R[b, n] with R_t = r_t + discount R_(t+1), begun from the value `last` [b]; nothing follows an end."""
    found = []
    for reward, goes in zip(reversed(rewards.unbind(1)), reversed(going.unbind(1)), strict=True):
        last = reward + DISCOUNT * goes * last
        found.append(last)
    return torch.stack(found[::-1], 1)


def _loss(model: ActorCritic, batch: Batch) -> Tensor:
    """Return the policy's, the values' and the entropy's loss (algorithm S3 of the paper)."""
    seen, actions, rewards, going = batch
    found: tuple[Tensor, Tensor] = model(seen.flatten(0, 1))
    logits, values = (t.float().reshape(*seen.shape[:2], *t.shape[1:]) for t in found)
    wanted = returns(rewards, going, values[:, -1].detach())
    advantage = wanted - values[:, :-1]
    log = functional.log_softmax(logits[:, :-1], -1)
    chosen = log.gather(2, actions[:, :, None])[:, :, 0]
    entropy = -(log.exp() * log).sum(-1)
    each: Tensor = VALUE * advantage**2 - chosen * advantage.detach() - ENTROPY * entropy
    return each.mean()


def _actor_critic(size: Size) -> ActorCritic:
    return ActorCritic(84, 16, 256) if size == "full" else ActorCritic(42, 4, 16)


def _batch(size: Size, samples: int, generator: torch.Generator) -> Batch:
    return played(samples, 84 if size == "full" else 42, generator)


WORKLOADS = (
    Workload(
        name="a3c",
        domain="reinforcement learning",
        paper="arXiv 1602.01783",
        parameters=677_172,
        samples={"tiny": 16, "full": 32},
        make=_actor_critic,
        draw=_batch,
        loss=_loss,
    ),
)
