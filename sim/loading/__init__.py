"""Whether devices wait for data: laws and processes of the input pipeline (DS-Analyzer, CoorDL, arXiv 2007.06775)."""

from sim.loading.predict import Prediction, predict

__all__ = ["Prediction", "predict"]
