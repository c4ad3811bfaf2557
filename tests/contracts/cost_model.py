"""What every form of a kernel's time must satisfy. A newcomer subclasses this and names its form and parameters."""

import numpy as np
import pytest

from calibration.fit import predict
from sim.costs.algebra import Interpreted, compile_expressions, symbol
from sim.costs.kernels import FORMS


class CostModelContract:
    """Laws of a form with typical parameters, at sizes [n] of its inputs.

    rates: parameters that are work in a second or make a kernel faster; growing: inputs of which more takes no less.
    """

    form: str
    parameters: dict[str, float]
    sizes: dict[str, list[float]]
    rates: tuple[str, ...]
    growing: tuple[str, ...]

    def seconds(self, sizes=None, **changes):
        inputs = {name: np.array(values, dtype=float) for name, values in (sizes or self.sizes).items()}
        return predict(self.form, inputs, self.parameters | changes)

    def test_it_is_registered_and_named_in_full(self):
        held = FORMS[self.form]
        assert held.id == self.form
        assert set(self.parameters) == set(held.parameters)
        assert set(self.sizes) == set(held.inputs)
        assert not set(held.parameters) & set(held.optional)

    def test_times_are_seconds(self):
        found = self.seconds()
        assert np.isfinite(found).all()
        assert (found > 0).all()

    def test_more_work_takes_no_less(self):
        for name in self.growing:
            more = self.sizes | {name: [2 * value for value in self.sizes[name]]}
            assert (self.seconds(more) >= self.seconds() * (1 - 1e-12)).all(), name

    def test_a_faster_device_takes_no_longer(self):
        for name in self.rates:
            assert (self.seconds(**{name: 2 * self.parameters[name]}) <= self.seconds()).all(), name

    def test_terms_that_a_profile_leaves_out_are_off(self):
        assert np.array_equal(self.seconds(), self.seconds(**FORMS[self.form].optional))

    def test_walked_and_compiled_are_one(self):
        held = FORMS[self.form]
        names = (*held.inputs, *held.names)
        inputs, parameters = ({n: symbol(n) for n in part} for part in (held.inputs, held.names))
        expressions = {"seconds": held.seconds(inputs, parameters)}
        values = dict(self.sizes) | held.complete(self.parameters)
        values = {name: np.asarray(values[name], dtype=float) for name in names}
        walked, compiled = (
            made(values)["seconds"] for made in (Interpreted(expressions), compile_expressions(expressions))
        )
        assert walked == pytest.approx(compiled, rel=1e-12)
        assert compiled == pytest.approx(self.seconds(), rel=1e-12)
