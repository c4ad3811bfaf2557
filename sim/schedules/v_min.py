"""V-Min: a third of 1F1B's memory at two thirds of its bubble (Qi et al. 2024, arXiv 2405.15362)."""

from sim.schedules.v_shape import Block, VShape


class VMin(VShape):
    """Where all actions last 1 and m >= 2 p > 2, the longest rank idles 4 p - 7 (3 divides p) or 4 p - 5; 1F1B 6 p - 6.

    A rank keeps at most (p + 4) // 3 microbatches, two chunk activations each (the authors' scheduler playground).
    """

    name = "v-min"

    def block(self, rank: int, p: int) -> Block:
        """Return the block's slots: F and I take one slot a rank, down and up.

        With p a multiple of 3, I starts two slots later, or two actions would fall into one slot of the period.
        """
        gap = 2 if p % 3 == 0 else 0
        return rank, 2 * p - 1 - rank, 2 * p + gap + rank, 4 * p - 1 + gap - rank
