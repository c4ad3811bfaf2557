"""A small training that saves its state: a GPT on generated tokens, the same bit for bit however often it is killed.

Every weight update is a line of an append-only log, with the samples it used; a run that resumes says so there, and
what came after the checkpoint it resumed from counts no more (`history`).
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from calibration.checkpointing.checkpointer import Checkpointer, latest_valid, load
from calibration.checkpointing.iterator import ResumableLoader
from calibration.checkpointing.manifest import Progress
from calibration.journal import read_journal
from sim.specs.fields import InputError, read, spec, whole

Size = Annotated[int, whole(1, 1_000_000)]
Count = Annotated[int, whole(0, 10**12)]
Batch = tuple[Tensor, Tensor]


@spec
class Sizes:
    """A GPT: width, layers, heads; tokens of a sample, different tokens."""

    hidden: Size = 16
    layers: Size = 1
    heads: Size = 2
    seq: Size = 8
    vocab: Size = 32

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise InputError("heads", self.heads, f"a divisor of {self.hidden}")


class Tokens(Dataset[Batch]):
    """Samples (index [], tokens [seq + 1]), each drawn from its own index."""

    def __init__(self, samples: int, sizes: Sizes) -> None:
        self.samples, self.sizes = samples, sizes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Batch:
        generator = torch.Generator().manual_seed(index)
        return torch.tensor(index), torch.randint(self.sizes.vocab, (self.sizes.seq + 1,), generator=generator)


class Gpt(nn.Module):
    """Tokens [batch, seq] to logits [batch, seq, vocab]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocab, sizes.hidden)
        layer = nn.TransformerEncoderLayer(sizes.hidden, sizes.heads, 4 * sizes.hidden, 0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)
        self.head = nn.Linear(sizes.hidden, sizes.vocab)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(sizes.seq), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.body(self.embed(tokens), mask=self.mask))
        return logits


class Trainee:
    """Network and Adam, from a seed; its state is 12 bytes a parameter (fp32 weights and two moments)."""

    def __init__(self, sizes: Sizes, seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = Gpt(sizes)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def gradients(self, tokens: Tensor) -> None:
        """Run forward and backward pass of tokens [batch, seq + 1]."""
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state, into the memory that there is: a file's pages may lie behind its tensors."""
        self.model.load_state_dict(state["model"])
        if not self.optimizer.state:
            self.optimizer.load_state_dict(state["optimizer"])
            for held in self.optimizer.state.values():
                held.update({name: one.clone() for name, one in held.items()})
        for n, held in self.optimizer.state_dict()["state"].items():
            for name, one in held.items():
                one.copy_(state["optimizer"]["state"][n][name])


class Run:
    """Training from where its checkpoints say, one `step` at a time; `log` is appended to."""

    def __init__(
        self, trainee: Trainee, loader: ResumableLoader, checkpointer: Checkpointer, log: Path | None = None
    ) -> None:
        self.trainee, self.loader, self.checkpointer = trainee, loader, checkpointer
        self.at = 0
        self.updated_s = 0.0
        """Seconds of the last weight update, without waiting for a snapshot."""
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if log else None
        self._batches: Iterator[Batch] = loader.forever()
        if found := checkpointer.resume():
            self._take_over(*found)
        self._say({"resumed": self.at})

    def step(self) -> None:
        """Train on one batch."""
        indices, tokens = next(self._batches)
        self.trainee.gradients(tokens)
        self.checkpointer.before_update()
        begin = perf_counter()
        self.trainee.optimizer.step()
        self.updated_s = perf_counter() - begin
        self.at += 1
        self._say({"step": self.at, "epoch": self.loader.position[0], "samples": indices.tolist()})
        self.loader.trained()

    def save(self) -> None:
        """Begin to save where training is."""
        self.checkpointer.save(self.trainee.state(), self.loader.progress(self.at))

    def rewind(self, upto: int) -> None:
        """Go back to the latest valid checkpoint of at most step `upto`; raises InputError where there is none."""
        found = latest_valid(self.checkpointer.folder, self.checkpointer.engine.store, upto)
        if found is None:
            raise InputError("folder", str(self.checkpointer.folder), f"a valid checkpoint up to step {upto}")
        self._take_over(load(found, self.checkpointer.engine), found.manifest.progress)

    def _take_over(self, state: Mapping[str, Any], progress: Progress) -> None:
        self.trainee.load(state)
        self.loader.resume(progress)
        self.at = progress.step
        self._batches = self.loader.forever()

    def until(self, steps: int, every: int) -> None:
        """Train up to step number `steps`, saving after every so many and at the end; return when all is written."""
        while self.at < steps:
            self.step()
            if self.at % every == 0 or self.at == steps:
                self.save()
        self.checkpointer.wait()

    def _say(self, line: Mapping[str, Any]) -> None:
        if self._log is not None:
            os.write(self._log, json.dumps(line).encode() + b"\n")  # one write: a killed process leaves whole lines

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None


@spec
class Update:
    """A weight update that the final weights have in them."""

    step: Count
    epoch: Count
    samples: tuple[int, ...]


@spec
class Resumed:
    """So many updates were in the state that a run began with."""

    resumed: Count


def history(log: Path) -> list[Update]:
    """Return the updates of a log in order, without those that a later start rolled back.

    Raises:
        InputError: a line that is none, or a run began elsewhere than where the updates before it end, or left a step
            out.
    """
    found: list[Update] = []
    for number, line in enumerate(read_journal(log), 1):
        place = f"{log}:{number}"
        if "resumed" in line:
            begin = read(Resumed, line, place).resumed
            if begin > len(found):
                raise InputError(f"{place}.resumed", begin, f"at most the {len(found)} updates so far")
            del found[begin:]
            continue
        update = read(Update, line, place)
        if update.step != len(found) + 1:
            raise InputError(f"{place}.step", update.step, f"the update after {len(found)}")
        found.append(update)
    return found
