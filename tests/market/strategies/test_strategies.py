from sim.market.strategies import STRATEGIES
from tests.contracts.strategy import StrategyContract

for _name in STRATEGIES:
    _made = type("Test" + _name.title().replace("_", ""), (StrategyContract,), {"name": _name})
    globals()[_made.__name__] = _made
