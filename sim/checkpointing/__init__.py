"""How often to save training state, what it costs and what failures leave of a run (CheckFreq, FAST '21)."""
