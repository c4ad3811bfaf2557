import pytest

from sim.market.rates import rates_of, read_rates
from sim.specs.fields import InputError
from tests.oracle import ROOT, reference


def test_a_table_by_gpu_and_model(tmp_path):
    file = tmp_path / "rates.csv"
    file.write_text("gpu,model,steps_per_s\nV100,net,2.5\nk80,net,0.5\n")
    assert read_rates(file) == {("net", 1): {"v100": 2.5, "k80": 0.5}}
    file.write_text('gpu,model,steps_per_s,source\nV100,net,2.5,"a page, somewhere"\n')
    assert rates_of(read_rates(file), "net", 1) == {"v100": 2.5}


def test_what_a_shared_cluster_reads():
    known = read_rates(ROOT / "notebooks" / "data" / "gavel-throughputs.yaml")
    kind = next(iter(known))
    assert set(rates_of(known, *kind)) == {"v100", "p100", "k80"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("gpu,model,steps_per_s\n", "a row or more"),
        ("gpu,model,steps_per_s\nv100,net\n", r"rates\.csv, line 2"),
        ("gpu,model,steps_per_s\nv100,net,fast\n", r"rates\.csv, line 2"),
        ("gpu,model,steps_per_s\nv100,net,-1\n", "steps_per_s"),
        ("gpu,model,steps_per_s\nv100,net,1\nV100,net,5\n", r"line 3\.gpu: got 'V100'; allowed: each device once"),
        ("gpu,model,steps_per_s\nv100,,1\n", r"line 2\.model: got ''; allowed: a name"),
        ("a,b\n", "job_type,scale_factor,device,steps_per_s"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path, text, match):
    file = tmp_path / "rates.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=match):
        read_rates(file)


def test_jobs_that_are_not_there(tmp_path):
    file = tmp_path / "rates.csv"
    file.write_text("gpu,model,steps_per_s\nV100,net,2.5\n")
    with pytest.raises(InputError, match="one of net"):
        rates_of(read_rates(file), "other", 1)
    with pytest.raises(InputError, match="number of devices"):
        rates_of(read_rates(file), "net", 4)


def test_the_studys_table():
    known = read_rates(reference("market/oracle_isolated_throughputs.csv"))
    assert len(known) == 26
    assert all(set(rates) == {"v100", "p100", "k80"} for rates in known.values())
