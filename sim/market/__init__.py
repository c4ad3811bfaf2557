"""Renting devices whose prices change: where, when, and whether to move.

Source: D. Narayanan et al., Analysis and Exploitation of Dynamic Pricing in the Public Cloud for ML Training, DISPA
2020.
"""

from sim.market.begins import rent_from
from sim.market.frequency import move_frequency
from sim.market.front import Traded, market_front
from sim.market.grid import Grid, price_grid
from sim.market.jobs import Moves, RentedJob
from sim.market.offers import History, Market, Offer
from sim.market.optimum import Optimum, optimum
from sim.market.price_files import read_prices, write_prices
from sim.market.renting import rent
from sim.market.results import Rental, Stay
from sim.market.strategies import STRATEGIES, strategy
from sim.market.strategies.base import Strategy
from sim.specs.tariffs import Tariff

__all__ = [
    "STRATEGIES",
    "Grid",
    "History",
    "Market",
    "Moves",
    "Offer",
    "Optimum",
    "Rental",
    "RentedJob",
    "Stay",
    "Strategy",
    "Tariff",
    "Traded",
    "market_front",
    "move_frequency",
    "optimum",
    "price_grid",
    "read_prices",
    "rent",
    "rent_from",
    "strategy",
    "write_prices",
]
