"""A button that starts heavy work in a process, its progress, the time it takes, and a button that cancels it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from html import escape
from time import monotonic
from typing import Any, Literal

import ipywidgets as w

from sim.specs import InputError
from sim.units import seconds
from sim.widgets.background import Job, Work

TICK_S = 0.5
"""How often the elapsed time is written anew."""

SOON_S = 1.0
"""Before that much has been spent on a part of the work nobody can say how long it takes."""

State = Literal["idle", "running", "done", "cancelled", "failed"]
Asked = tuple[Work, tuple[Any, ...]]


class BackgroundBar(w.HBox):
    """Start, progress, elapsed and remaining time, Cancel; what goes wrong is said here, and never raised.

    asked: the work and its arguments, looked up when the button is pressed (InputError: it cannot be done, and why);
    on_result: what is done with the result; on_state: called after every change of `state`; ending: what the
    button that ends the work says, and what is said then; beside: buttons after that one.
    """

    def __init__(
        self,
        label: str,
        asked: Callable[[], Asked],
        on_result: Callable[[Any], None],
        on_state: Callable[[State], None] = lambda state: None,
        ending: tuple[str, str] = ("Cancel", "cancelled"),
        beside: tuple[w.Button, ...] = (),
    ) -> None:
        self._asked, self._on_result, self._on_state = asked, on_result, on_state
        self.job = Job(self._finished, self._failed, self._progressed)
        self._state: State = "idle"
        self._begin = self._part_begin = 0.0
        self._part: tuple[str, int, int] = ("", 0, 0)
        self._first, self._ended = 0, ending[1]
        self._start = w.Button(description=label, layout=w.Layout(width="auto", flex="0 0 auto"))
        self._bar = w.FloatProgress(min=0.0, max=1.0, layout=w.Layout(width="160px", visibility="hidden"))
        self._words = w.HTML(layout=w.Layout(flex="1 1 auto", min_width="0"))
        self._cancel = w.Button(description=ending[0], disabled=True, layout=w.Layout(width="auto", flex="0 0 auto"))
        wrapping = w.Layout(align_items="center", flex_flow="row wrap")
        super().__init__([self._start, self._bar, self._cancel, *beside, self._words], layout=wrapping)
        self._start.on_click(lambda _: self.start())
        self._cancel.on_click(lambda _: self.cancel())

    @property
    def state(self) -> State:
        """What the work is at."""
        return self._state

    @property
    def pace(self) -> float | None:
        """How much of the present part is done a second; None before it can be said."""
        spent, done = monotonic() - self._part_begin, self._part[1] - self._first
        return done / spent if self._state == "running" and done > 0 and spent >= SOON_S else None

    def offer(self, label: str) -> None:
        """Name the button that starts the work."""
        self._start.description = label

    @property
    def message(self) -> str:
        """The text beside the buttons, as HTML."""
        return str(self._words.value)

    def start(self) -> None:
        """Start the work; what was running is cancelled."""
        self._begin = self._part_begin = monotonic()
        self._part = ("starting", 0, 0)
        try:
            work, arguments = self._asked()
            self.job.start(work, *arguments)
        except (InputError, OSError) as error:
            self._failed(str(error))
            return
        self._bar.value = 0.0
        self._become("running")
        self._tick(self.job.pid)

    def cancel(self) -> None:
        """End the work if there is any."""
        if self.job.running:
            self.job.cancel()
            self._become("cancelled", f"{self._ended} after {self._spent}")

    def reset(self, words: str) -> None:
        """Be as before the first start; what was running is cancelled, and `words` are said."""
        self.job.cancel()
        self._become("idle", words)

    @property
    def _spent(self) -> str:
        return seconds(monotonic() - self._begin)

    def _become(self, state: State, words: str = "") -> None:
        self._state = state
        self._cancel.disabled = state != "running"
        self._bar.layout.visibility = "visible" if state == "running" else "hidden"
        self._words.value = escape(words)
        self._on_state(state)

    def _progressed(self, what: str, done: int, of: int) -> None:
        if what != self._part[0]:
            # Work that goes on where it was stopped begins with much done.
            self._part_begin, self._first = monotonic(), done
        self._part = (what, done, of)
        self._bar.value = min(1.0, done / of) if of else 0.0
        self._say()

    def _say(self) -> None:
        """Write what is done; a part's own pace says when it ends, and of the parts after it nothing is known."""
        what, done, of = self._part
        words = [f"{what} {done} of {of}" if of > 1 else what, f"{monotonic() - self._begin:.0f} s"]
        if (pace := self.pace) and done < of:
            words.append(f"{(of - done) / pace:.0f} s left of this part")
        self._words.value = escape(" · ".join(words))

    def _tick(self, pid: int | None) -> None:
        """Let the elapsed time go on between two messages, while the same process works."""
        if self._state != "running" or self.job.pid != pid:
            return
        self._say()
        with suppress(RuntimeError):  # no event loop: nobody watches
            asyncio.get_running_loop().call_later(TICK_S, self._tick, pid)

    def _finished(self, result: Any) -> None:
        try:
            self._on_result(result)
        except Exception as error:  # of who draws the result; said here, as there is no cell to say it
            self._failed(f"{type(error).__name__}: {error}")
            return
        self._become("done", f"done in {self._spent}")

    def _failed(self, words: str) -> None:
        self._become("failed", f"failed: {words}")
