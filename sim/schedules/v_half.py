"""V-Half: half of 1F1B's memory at half of its bubble (Qi et al. 2024, arXiv 2405.15362)."""

from sim.schedules.v_shape import Block, VShape


class VHalf(VShape):
    """Where all actions last 1 and m >= 2 p > 4, the longest rank idles 3 p - 7 (p even) or 3 p - 4; 1F1B 6 p - 6.

    A rank keeps at most (p + 2) // 2 microbatches, two chunk activations each (the authors' scheduler playground).
    """

    name = "v-half"

    def block(self, rank: int, p: int) -> Block:
        """Return the block's slots: F takes two slots a rank on the way down and one on the way up, and so does I.

        With even p, I starts three slots later, or two actions would fall into one slot of the period.
        """
        gap = 3 if p % 2 == 0 else 0
        return 2 * rank, 3 * p - 2 - rank, 3 * p - 1 + gap + 2 * rank, 6 * p - 2 + gap - rank
