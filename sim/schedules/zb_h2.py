"""ZB-H2: no bubble on any rank's own span, at twice 1F1B's memory (arXiv 2401.10241, section 2.2)."""

from sim.schedules.zb_h1 import ZBH1


class ZBH2(ZBH1):
    """Rank-span bubble (p - 1)(F + I - 2 W); every rank keeps 2 p - 1 microbatches from F to W.

    Rank r starts with 2(p - r) - 1 forwards; W follows 2 r microbatches behind I.
    """

    name = "zb-h2"
    steps = 2
