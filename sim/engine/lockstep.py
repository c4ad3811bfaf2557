"""A step's world on a clock of its own that follows a longer one: that of a run of many steps."""

from collections.abc import Callable

import simpy

from sim.engine.events import World
from sim.engine.program import Program, Run, Sharing, Stream


class Lockstep:
    """The operations of one step, begun at tick `begin` of `env`, which may have passed.

    What has passed since then ran undisturbed. Whoever holds an operation, lets it go or keeps a stream active does so
    at the present tick of `env`.
    """

    def __init__(self, env: simpy.Environment, program: Program, sharing: Sharing | None, begin: int) -> None:
        self.env, self.begin = env, begin
        self.world = World(program, sharing)
        self.done = env.event()
        """Happens when all operations have ended."""
        self._stamp = 0

    def launch(self) -> None:
        """Let the operations start, and follow `env` from now on."""
        self.world.launch()
        self._follow()

    def hold(self, operation: int) -> Callable[[], None]:
        """Keep an operation from starting until the returned function is called (once); only before `launch`."""
        release = self.world.hold(operation)

        def let_go() -> None:
            self._catch_up()
            release()
            self._follow()

        return let_go

    def started(self, operation: int) -> simpy.Event:
        """Return an event of `env` that happens when an operation starts."""
        return self._mirrored(self.world.started(operation))

    def ended(self, operation: int) -> simpy.Event:
        """Return an event of `env` that happens when an operation ends."""
        return self._mirrored(self.world.ended(operation))

    def keep_active(self, rank: int, stream: Stream) -> Callable[[], None]:
        """Slow down what runs beside `stream` on a rank until the returned function is called (once)."""
        assert self.world.fluid, "a world in which nothing is shared has no slower streams"
        self._catch_up()
        release = self.world.fluid.begin(rank, stream)
        self._follow()

        def let_go() -> None:
            self._catch_up()
            release()
            self._follow()

        return let_go

    def result(self) -> Run:
        """Return when the operations ran, in ticks from the step's begin."""
        return self.world.result()

    def _mirrored(self, inner: simpy.Event) -> simpy.Event:
        event = self.env.event()
        if inner.processed:
            return event.succeed()

        def happen(_: simpy.Event) -> None:
            event.succeed()

        def mirror(same: simpy.Event) -> None:
            ahead = int(self._ahead(self.world.env.now))
            if ahead > 0:
                self.env.timeout(ahead).callbacks.append(happen)
            else:
                happen(same)

        inner.callbacks.append(mirror)
        self._follow()
        return event

    def _catch_up(self) -> None:
        """Do all that happens up to now."""
        clock, now = self.world.env, self.env.now - self.begin
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
        clock, stamp = self.world.env, self._stamp
        ahead = self._ahead(clock.peek() if self.world.left else clock.now)
        if not self.world.left and ahead <= 0:
            if not self.done.triggered:
                self.done.succeed()
            return
        if ahead == float("inf"):
            return  # until something that is held is let go
        timeout = self.env.timeout(max(0, int(ahead)))
        timeout.callbacks.append(lambda _: self._wake() if self._stamp == stamp else None)

    def _wake(self) -> None:
        """Do all that happens now, and at once what happens before anything else does on `env`."""
        self._catch_up()
        clock = self.world.env
        while self.world.left and clock.peek() < self.env.peek() - self.begin:
            clock.step()
        self._follow()
