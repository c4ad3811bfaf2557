"""Profiles for tests: of a host processor, and of devices that wait for none."""

import json

from sim.catalog import folder
from sim.costs.profile import load_profile, profile_text


def write(path, **change):
    """Write a profile for the CPU: that of t4 with the rates of a core and what else is given."""
    raw = json.loads((folder("profiles") / "t4" / "profile.json").read_text())
    for model in raw["models"]:
        model["parameters"] |= {k: v for k, v in {"rate": 1e11, "bandwidth": 2e10}.items() if k in model["parameters"]}
    raw = {name: value for name, value in raw.items() if "issue" not in name}
    raw |= {"name": "own", "dtype": "float32"} | change
    raw["models"] = raw["models"] + raw.pop("more", [])
    path.mkdir()
    (path / "profile.json").write_text(json.dumps(raw))
    return str(path)


def hostless(device, path):
    """Write the profile of a catalog device whose kernels take a host no time to issue."""
    path.mkdir()
    (path / "profile.json").write_text(profile_text(load_profile(device).with_issue_of(None)))
    return str(path)
