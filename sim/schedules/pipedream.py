"""PipeDream: 1F1B that never flushes, an update after every backward (SOSP'19, arXiv 1806.03377, sections 3.2, 3.3)."""

from itertools import accumulate

from sim.schedules.base import ScheduleKind, Shape, Work
from sim.schedules.ir import Action, Kind, Schedule


class PipeDream(ScheduleKind):
    """No bubble in steady state; rank r keeps p - r microbatches and as many versions of its weights.

    A forward takes the newest weights, its backward the ones that its forward took (weight stashing). With
    `vertical_sync` all stages take the version that the first stage took, so all ranks keep p versions.
    With `replicas` stage s runs on several ranks: microbatch k on the (k mod replicas)-th of them, in both
    directions (1F1B-RR); each round of replicas averages its gradients, so each rank's update is the stage's.
    """

    name = "pipedream"
    replicated = True

    def refusal(self, shape: Shape) -> tuple[str, object, str] | None:
        if refusal := super().refusal(shape):
            return refusal
        if not shape.replicas:
            return None
        if min(shape.replicas) < 1 or sum(shape.replicas) != shape.ranks:
            return "replicas", shape.replicas, f"numbers >= 1 that sum to the ranks, {shape.ranks}"
        if max(shape.replicas) > shape.microbatches:
            return "microbatches", shape.microbatches, f"one for each replica, at least {max(shape.replicas)}"
        if shape.vertical_sync and len(set(shape.replicas)) > 1:
            return "vertical_sync", True, "with equal replicas: an update of each stage takes as many microbatches"
        return None

    def build(self, shape: Shape, work: Work) -> Schedule:
        del work
        replicas = shape.replicas or (1,) * shape.ranks
        first_rank = (0, *accumulate(replicas))
        actions: list[tuple[Action, ...]] = []
        stale: list[int] = []
        for stage, several in enumerate(replicas):
            ahead = warm_up(replicas, stage)
            for replica in range(several):
                own = range(replica, shape.microbatches, several)
                actions.append(_order(stage, own, ahead))
                stale.append(min(warm_up(replicas, 0) if shape.vertical_sync else ahead, len(own) - 1))
        return Schedule(
            self.name,
            shape.microbatches,
            first_rank[:-1],
            tuple(actions),
            weight_versions=tuple(n + 1 for n in stale),
            staleness=tuple(stale),
            vertical_sync=shape.vertical_sync,
        )


def warm_up(replicas: tuple[int, ...], stage: int) -> int:
    """Return how many forwards each replica of `stage` does before its first (F, B) pair.

    (workers from the stage on - 1) // replicas of the stage, as the authors' runtime has it. On the first stage that
    is NOAM - 1 with NOAM = ceil(workers / replicas of the first stage) (arXiv 1806.03377, section 3.2), and
    (workers from the stage on - replicas) // replicas wherever the replicas divide the workers from the stage on.
    """
    return (sum(replicas[stage:]) - 1) // replicas[stage]


def _order(stage: int, own: range, ahead: int) -> tuple[Action, ...]:
    actions = [Action(stage, Kind.F, k) for k in own[:ahead]]
    for i, k in enumerate(own):
        actions += [Action(stage, Kind.F, later) for later in own[i + ahead : i + ahead + 1]]
        actions += [Action(stage, Kind.B, k), Action(stage, Kind.OPTIMIZER, k)]
    return tuple(actions)
