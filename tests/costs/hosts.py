"""A profile of a host processor for tests."""

import json

from sim.catalog import folder


def write(path, **change):
    """Write a profile for the CPU: that of t4 with the rates of a core and what else is given."""
    raw = json.loads((folder("profiles") / "t4" / "profile.json").read_text())
    for model in raw["models"]:
        model["parameters"] |= {k: v for k, v in {"rate": 1e11, "bandwidth": 2e10}.items() if k in model["parameters"]}
    raw |= {"name": "own", "dtype": "float32"} | change
    raw["models"] = raw["models"] + raw.pop("more", [])
    path.mkdir()
    (path / "profile.json").write_text(json.dumps(raw))
    return str(path)
