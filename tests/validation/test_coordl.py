"""CoorDL's published gains, beside the maxima of the laws: nothing is fitted."""

import pytest

from sim.validation.coordl import JOBS, ONE_SERVER, SEARCH, SERVERS_HDD, bands

FOUND = {band.published: band for band in bands()}


def test_hyper_parameter_search_gains_most_and_no_more_than_jobs_and_cache_give():
    band = FOUND[SEARCH]
    assert SEARCH.most <= band.most <= 1.1 * JOBS
    assert band.median < SEARCH.most


def test_one_server_gains_as_much_as_published():
    assert FOUND[ONE_SERVER].most == pytest.approx(ONE_SERVER.most, rel=0.15)


def test_several_servers_gain_as_much_as_published_on_some_disk():
    assert FOUND[SERVERS_HDD].least < SERVERS_HDD.most < FOUND[SERVERS_HDD].most
