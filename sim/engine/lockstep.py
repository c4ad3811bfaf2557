"""A step's world on a clock of its own that follows a longer one: that of a run of many steps."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import simpy
from simpy.events import NORMAL, EventPriority

from sim.engine.events import World
from sim.engine.program import Program, Run, Sharing, Stream

LAST = EventPriority(2)
"""After all else that happens at the same tick."""

Act = tuple[int, str, int, int]
"""What is done to a step, or what it tells: ticks since its begin, what, and an operation, or a rank and a stream."""


@dataclass(eq=False, slots=True)
class Known:
    """What is known of steps to which the same has been done at the same ticks.

    after: the same with one act more; tells: that of them which comes by itself, where nothing else is done before;
    run: how the step came out, where it has ended.
    """

    after: dict[Act, "Known"] = field(default_factory=dict)
    tells: Act | None = None
    run: Run | None = None


class _Due(simpy.Event):
    """A timeout with a place among all that happens at its tick."""

    def __init__(self, env: simpy.Environment, priority: EventPriority, ticks: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, priority, ticks)


class Lockstep:
    """The operations of one step, begun at tick `begin` of `env`, which may have passed.

    What has passed since then ran undisturbed. Whoever holds an operation, lets it go or keeps a stream active does so
    at the present tick of `env`. `known` remembers steps of the same program and sharing: one to which the same is done
    at the same ticks tells the same, and is run only from where it differs on.
    """

    def __init__(
        self, env: simpy.Environment, program: Program, sharing: Sharing | None, begin: int, known: Known | None = None
    ) -> None:
        self.env, self.begin = env, begin
        self.done = env.event()
        """Happens when all operations have ended."""
        self.world: World | None = None
        """The operations as they run, None while all is as it is known."""
        self._make = partial(World, program, sharing)
        self._known = known or Known()
        self._acts: list[Act] = []
        self._launched = False
        self._told: dict[tuple[str, int], simpy.Event] = {}
        self._release: defaultdict[tuple[int, int], list[Callable[[], None]]] = defaultdict(list)
        self._stamp = 0

    def launch(self) -> None:
        """Let the operations start, and follow `env` from now on."""
        self._act("launch")

    def hold(self, operation: int) -> Callable[[], None]:
        """Keep an operation from starting until the returned function is called (once); only before `launch`."""
        self._act("hold", operation)
        return partial(self._act, "let go", operation)

    def keep_active(self, rank: int, stream: Stream) -> Callable[[], None]:
        """Slow down what runs beside `stream` on a rank until the returned function is called (once)."""
        self._act("active", rank, int(stream))
        return partial(self._act, "quiet", rank, int(stream))

    def started(self, operation: int) -> simpy.Event:
        """Return an event of `env` that happens when an operation starts."""
        return self._watched("started", operation)

    def ended(self, operation: int) -> simpy.Event:
        """Return an event of `env` that happens when an operation ends."""
        return self._watched("ended", operation)

    def result(self) -> Run:
        """Return when the operations ran, in ticks from the step's begin."""
        return self._known.run or self._running().result()

    def _watched(self, what: str, operation: int) -> simpy.Event:
        if (what, operation) not in self._told:
            event = self._told[what, operation] = self.env.event()
            if self.done.triggered:
                return event.succeed()
            self._act("watch " + what, operation)
        return self._told[what, operation]

    def _act(self, what: str, of: int = -1, stream: int = -1) -> None:
        """Do something to the step now."""
        self._catch_up()
        if self.done.triggered:
            return
        act = int(self.env.now) - self.begin, what, of, stream
        if act not in self._known.after and not self.world:
            self._running()
            self._catch_up()
        self._acts.append(act)
        self._known = self._known.after.setdefault(act, Known())
        if self.world:
            self._apply(self.world, act)
        self._launched |= what == "launch"
        self._follow()

    def _running(self) -> World:
        """Return the operations as they run, from now on if they did not."""
        if self.world is None:
            self.world, launched = self._make(), False
            for act in self._acts:
                if launched:
                    self._run_until(act[0])
                self._apply(self.world, act)
                launched |= act[1] == "launch"
        return self.world

    def _apply(self, world: World, act: Act) -> None:
        _, what, of, stream = act
        if what == "launch":
            world.launch()
        elif what == "hold":
            self._release[of, stream].append(world.hold(of))
        elif what == "active":
            assert world.fluid, "a world in which nothing is shared has no slower streams"
            self._release[of, stream].append(world.fluid.begin(of, Stream(stream)))
        elif what in ("let go", "quiet"):
            self._release[of, stream].pop()()
        else:
            self._mirror(what.removeprefix("watch "), of)

    def _mirror(self, what: str, operation: int) -> None:
        """Tell on `env` when an operation starts or ends, unless it is told already."""
        assert self.world
        event, inner = self._told[what, operation], getattr(self.world, what)(operation)

        def mirror(_: Any = None) -> None:
            ahead = int(self._ahead(self.world.env.now)) if self.world else 0
            if event.triggered:
                return
            if ahead > 0:
                self.env.timeout(ahead).callbacks.append(lambda _: self._tell(what, operation))
            else:
                self._tell(what, operation)

        if inner.processed:
            mirror()
        else:
            inner.callbacks.append(mirror)

    def _tell(self, what: str, operation: int = -1) -> None:
        """Let an event of `env` happen, and remember that it came by itself."""
        act = int(self.env.now) - self.begin, what, operation, -1
        self._known.tells = act
        self._known = self._known.after.setdefault(act, Known())
        if what == "done":
            self._known.run = self._known.run or self._running().result()
        (self.done if what == "done" else self._told[what, operation]).succeed()

    def _catch_up(self) -> None:
        """Do all that happens up to now."""
        now = int(self.env.now) - self.begin
        if self.world is None:
            while (tells := self._known.tells) and tells[0] <= now:
                self._tell(*tells[1:3])
        elif self._launched:
            self._run_until(now)

    def _run_until(self, now: int) -> None:
        assert self.world
        clock = self.world.env
        while clock.peek() <= now:
            clock.step()
        if now > clock.now:
            clock.run(until=now)

    def _ahead(self, at: float) -> float:
        """Return the ticks from now on `env` to a time of the step's own clock."""
        return at + self.begin - self.env.now

    def _follow(self) -> None:
        """Wake up when something happens next."""
        self._stamp += 1
        if self.done.triggered or not self._launched:
            return
        if self.world is None:
            tells = self._known.tells
            if tells:
                self._wake_in(self._ahead(tells[0]), self._wake)
            else:  # by the end of the last of these ticks one of them is done, or all is new
                last = max((act[0] for act in self._known.after), default=int(self.env.now) - self.begin)
                self._wake_in(self._ahead(last), self._part, LAST)
            return
        clock = self.world.env
        ahead = self._ahead(clock.peek() if self.world.left else clock.now)
        if not self.world.left and ahead <= 0:
            self._tell("done")
        elif ahead < float("inf"):  # else until something that is held is let go
            self._wake_in(max(0, ahead), self._wake)

    def _wake_in(self, ahead: float, wake: Callable[[], None], priority: EventPriority = NORMAL) -> None:
        stamp = self._stamp
        _Due(self.env, priority, int(ahead)).callbacks.append(lambda _: wake() if self._stamp == stamp else None)

    def _part(self) -> None:
        """Go on alone: nothing has been done that is known."""
        self._running()
        self._wake()

    def _wake(self) -> None:
        """Do all that happens now, and at once what happens before anything else does on `env`."""
        self._catch_up()
        if self.world:
            clock = self.world.env
            while self.world.left and clock.peek() < self.env.peek() - self.begin:
                clock.step()
        self._follow()
