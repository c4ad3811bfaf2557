"""Files of prices that are known by their columns, and the offer that a row of each speaks of."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sim.market.offers import Billing, Offer
from sim.market.tables import Table, is_json, read_mapping, read_table
from sim.specs.fields import InputError
from sim.specs.tariffs import instances

Row = Mapping[str, str]


@dataclass(frozen=True)
class LeftOut:
    """Why no offer is made of a row: words for a note, and which cell would have had to be what."""

    why: str
    column: str
    value: str
    allowed: str


@dataclass(frozen=True)
class Format:
    """A kind of file: its columns, and what a row offers.

    `prices` are columns with how they are paid (empty: the offer says), `time` the column of when a price begins
    (empty: prices hold always). `offer` gets the cells of `keys`, by name; `cloud` too. `empty` is the note on rows
    without any price; where it is empty they are mistakes. `timeless`: a row without a time holds always.
    """

    title: str
    keys: tuple[str, ...]
    prices: tuple[tuple[str, Billing | None], ...]
    offer: Callable[[Row], Offer | LeftOut]
    time: str = ""
    also: tuple[str, ...] = ()
    empty: str = ""
    timeless: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns by which a file is known."""
        return (*self.keys, *([self.time] if self.time else []), *(column for column, _ in self.prices))


def opened(path: str | Path) -> tuple[Table, Format]:
    """Return the rows of a file and their format.

    Raises:
        InputError: the file cannot be read, or its columns are those of no format.
    """
    file = Path(path)
    if is_json(file):
        return _described(file), DESCRIBED
    table = read_table(file)
    found = next((known for known in FORMATS if table.has(known.needs)), None)
    if found:
        return table, found
    nearest = max(FORMATS, key=lambda known: sum(table.has([name]) for name in known.needs) / len(known.needs))
    missing = [name for name in nearest.needs if not table.has([name])]
    if len(missing) <= len(nearest.needs) / 2:
        raise InputError(f"{file}, line 1", None, f"required: column {', '.join(missing)} ({nearest.title})")
    allowed = "; ".join(f"{known.title}: {','.join(known.needs)}" for known in FORMATS)
    raise InputError(f"{file}, line 1", ",".join(table.header), f"columns of one of these: {allowed}")


def cloud_of(file: str) -> str:
    """Return the cloud that a file's name says, or, of files called vms, its folder's."""
    path = Path(file)
    stem = path.name.split(".")[0]
    return path.resolve().parent.name if stem == "vms" else stem


def device_name(text: str) -> str:
    """Return the name of a device as offers have it: `NVIDIA-Tesla-V100` is v100, `A100-80GB` a100-80gb."""
    return text.lower().removeprefix("nvidia-").removeprefix("tesla-")


def bare_instance(device: str, devices: int) -> str:
    """Return a name where a file names devices but no instance that has them."""
    return f"{devices}x{device}"


def count_of(row: Row, column: str) -> int:
    """Return how many devices a cell states; raises InputError where it is no whole number from 1 to 1024."""
    text = row[column].removesuffix(".0")
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= 1_024:
        raise InputError(column, row[column], "a whole number from 1 to 1024")
    return int(text)


def _aws(row: Row) -> Offer | LeftOut:
    return _amazon(row["region"], row["availability_zone"], row["instance_type"], "instance_type")


def _amazon(region: str, zone: str, instance: str, column: str) -> Offer | LeftOut:
    known = instances("aws")
    if instance not in known:
        return LeftOut("of unknown types of instances", column, instance, "one of " + ", ".join(known))
    has = known[instance]
    return Offer(cloud="aws", region=region, zone=zone, instance=instance, device=has.device, devices=has.devices)


ZONE = re.compile(r"[a-z]+(-[a-z]+)+-[0-9]+")
"""The region at the beginning of a zone of AWS: us-east-1 of us-east-1a, of us-east-1-bos-1a too."""


def _described_offer(row: Row) -> Offer | LeftOut:
    region = ZONE.match(row["AvailabilityZone"])
    if not region:
        raise InputError("AvailabilityZone", row["AvailabilityZone"], "a zone like us-east-1a")
    system = row["ProductDescription"]
    if not system.startswith("Linux/UNIX"):
        return LeftOut("of other systems than Linux/UNIX", "ProductDescription", system, "Linux/UNIX")
    return _amazon(region[0], row["AvailabilityZone"], row["InstanceType"], "InstanceType")


def _azure(row: Row) -> Offer:
    return Offer(
        cloud="azure",
        region=row["region"],
        instance=row["instance_type"],
        device=device_name(row["gpu"]),
        devices=count_of(row, "n_gpus"),
    )


def _gcp(row: Row) -> Offer:
    device, devices = device_name(row["gpu"]), count_of(row, "n_gpus")
    region = row["zone"].rpartition("-")[0]
    instance = bare_instance(device, devices)
    return Offer(cloud="gcp", region=region, zone=row["zone"], instance=instance, device=device, devices=devices)


def _catalogue(instance: str, gpu: str, count: str, region: str, zone: str) -> Callable[[Row], Offer | LeftOut]:
    """Return what makes an offer of a row of a catalogue with these columns."""

    def offer(row: Row) -> Offer | LeftOut:
        if not row[gpu]:
            return LeftOut("without a device", gpu, "", "a device in at least one row")
        if re.fullmatch(r"0?\.[0-9]*[1-9][0-9]*", row[count]):
            return LeftOut("with a part of a device", count, row[count], "a whole device in at least one row")
        device, devices = device_name(row[gpu]), count_of(row, count)
        return Offer(
            cloud=row["cloud"],
            region=row[region],
            zone=row.get(zone, ""),
            instance=row[instance] or bare_instance(device, devices),
            device=device,
            devices=devices,
        )

    return offer


def _plain(row: Row) -> Offer:
    billing = row["billing"]
    if billing not in get_args(Billing):
        raise InputError("billing", billing, "one of " + ", ".join(get_args(Billing)))
    names = {name: row[name] for name in ("cloud", "region", "zone", "instance")}
    paid: Billing = "spot" if billing == "spot" else "on-demand"
    return Offer(**names, device=device_name(row["device"]), devices=count_of(row, "devices"), billing=paid)


PLAIN = Format(
    "plain prices", ("cloud", "region", "zone", "instance", "device", "devices", "billing"),
    (("usd_per_hour", None),), _plain, "time_utc", timeless=True,
)  # fmt: skip
NO_PRICE = "rows without a price are left out: {}"
SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Region", "AvailabilityZone")
SAMPLE = ("instance_type", "gpu", "n_gpus", "region")
FORMATS = (
    PLAIN,
    Format(
        "price changes of AWS", ("region", "availability_zone", "instance_type"),
        (("spot_price_usd_per_hour", "spot"),), _aws, "timestamp_utc",
    ),
    Format(
        "prices of Azure by the day", ("region", "instance_type", "gpu", "n_gpus"),
        (("spot_price_usd_per_hour", "spot"),), _azure, "date",
        empty="days without a price, on which the last known one holds: {}",
    ),
    Format("prices of GCP", ("zone", "gpu", "n_gpus"), (("price_usd_per_hour", "spot"),), _gcp, "timestamp_utc"),
    Format(
        "a catalogue of SkyPilot", SKYPILOT[:4], (("Price", "on-demand"), ("SpotPrice", "spot")),
        _catalogue(*SKYPILOT), also=(SKYPILOT[4], "cloud"), empty=NO_PRICE,
    ),
    Format(
        "a catalogue", ("cloud", *SAMPLE), (("price_usd_per_hour", "on-demand"), ("spot_price", "spot")),
        _catalogue(*SAMPLE, ""), empty=NO_PRICE,
    ),
)  # fmt: skip
DESCRIBED = Format(
    "aws ec2 describe-spot-price-history", ("AvailabilityZone", "InstanceType", "ProductDescription"),
    (("SpotPrice", "spot"),), _described_offer, "Timestamp",
)  # fmt: skip


def _described(file: Path) -> Table:
    """Return what `aws ec2 describe-spot-price-history` printed as rows."""
    entries = read_mapping(file).get("SpotPriceHistory")
    if not isinstance(entries, list):
        raise InputError(f"{file}, SpotPriceHistory", entries, "a list of prices, as AWS prints it")
    table = Table(str(file), DESCRIBED.needs, iter(()), "SpotPriceHistory.", 0)

    def rows() -> Iterator[list[str]]:
        for n, entry in enumerate(entries):
            stated = entry if isinstance(entry, dict) else {}
            cells = [cell for name in DESCRIBED.needs if isinstance(cell := stated.get(name), str)]
            if len(cells) < len(DESCRIBED.needs):
                table.wrong(n, "", entry, f"texts under {', '.join(DESCRIBED.needs)}")
            yield cells if len(cells) == len(DESCRIBED.needs) else []

    table.rows = rows()
    return table
