"""ZB-2p: the searched zero-bubble order at twice 1F1B's memory (arXiv 2401.10241, sections 3.1 and 5)."""

from sim.schedules.zb_1p import ZB1P
from sim.schedules.zb_h2 import ZBH2


class ZB2P(ZB1P):
    """Rank-span bubble near 0; every rank keeps at most 2 p microbatches, or `memory_limit`."""

    name = "zb-2p"
    by_hand = ZBH2()
    passes = 2
