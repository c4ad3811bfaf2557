"""All kernel families; a new one is a line here and passes `tests.contracts.family.FamilyContract`."""

from calibration.kernels import (
    activation,
    adam,
    allocate,
    attention,
    convolution,
    copies,
    elementwise,
    embedding,
    gemm,
    launch,
    lstm,
    norm,
    overhead,
    residual,
    snapshot,
    softmax,
    whole,
)
from calibration.kernels.family import Family

FAMILIES: tuple[Family, ...] = (
    *gemm.FAMILIES,
    *attention.FAMILIES,
    *norm.FAMILIES,
    *activation.FAMILIES,
    *residual.FAMILIES,
    *softmax.FAMILIES,
    *elementwise.FAMILIES,
    *embedding.FAMILIES,
    *adam.FAMILIES,
    *lstm.FAMILIES,
    *convolution.FAMILIES,
    *copies.FAMILIES,
    *launch.FAMILIES,
    *overhead.FAMILIES,
    *allocate.FAMILIES,
    *snapshot.FAMILIES,
    *whole.FAMILIES,
)
