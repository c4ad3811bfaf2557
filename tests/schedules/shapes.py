"""Legal shapes of every kind of schedule, drawn by hypothesis."""

from hypothesis import strategies as st

from sim.schedules import SCHEDULES, Shape


@st.composite
def shapes(draw, name):
    """Return a legal shape of one kind; sizes that it does not take are moved to the next that it does."""
    kind = SCHEDULES[name]
    p, m = draw(st.integers(1, 8)), draw(st.integers(1, 24))
    chunks = draw(st.integers(2, 4)) if kind.pipeline.any_chunks else kind.chunks
    group, variant = 0, draw(st.sampled_from(["", *kind.variants]))
    if kind.copies == 2:
        p, m = p + p % 2, m + m % 2
    if name == "1f1b" and variant == "torch":
        m = max(m, p)
    if name in ("dualpipev", "dualpipe"):
        m += 2 * p
    if name == "2bw":
        p += p == 1
        group = draw(st.integers(p, p + 3))
        m += -m % group
    if name == "interleaved-zb" and m > 2 * p:
        m -= m % p
    if name == "interleaved":
        p += p == 1
        if variant == "torch":
            m -= m % p if m > 2 * p else 0
        else:
            group = draw(st.integers(p, p + 3))
            m += -m % group
    return Shape(p, m, chunks, group, variant=variant)
