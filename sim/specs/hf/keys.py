"""What the readers share: keys that must be there, numbers before arithmetic, patterns of layers."""

from collections.abc import Callable, Mapping
from typing import Any

from sim.specs.blocks import block_letter
from sim.specs.fields import InputError

Config = Mapping[str, Any]
Reader = Callable[[Config], dict[str, Any]]
MOST_LAYERS = 4_096


def need(config: Config, key: str) -> Any:
    """Return the value of `key`; raises InputError where it is missing."""
    if key not in config:
        raise InputError(key, None, "required in this config.json")
    return config[key]


def number(config: Config, key: str, default: int | None = None, most: int = 10_000_000, least: int = 0) -> int:
    """Return the whole number at `key` for arithmetic; null is 0, and `default` None makes the key required."""
    value = need(config, key) if default is None else config.get(key, default)
    if value is None and not least:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(key, value, f"a whole number from {least} to {most}")
    return value


def flag(config: Config, key: str, default: bool) -> bool:
    """Return the truth value at `key`; raises InputError for anything but true, false or null (false)."""
    value = config.get(key, default)
    if value not in (True, False, None):
        raise InputError(key, value, "true or false")
    return bool(value)


def activation(config: Config, key: str, default: str = "gelu") -> str:
    """Return `Model.activation` of the function that `key` names: a ReLU, or one that keeps as much as a GELU."""
    return "relu" if config.get(key, default) == "relu" else "gelu"


def only(config: Config, **allowed: object) -> None:
    """Refuse a config whose keys, where given, differ from the one value that `Model` can express."""
    for key, value in allowed.items():
        if config.get(key) is not None and config[key] != value:
            raise InputError(key, config[key], f"{value!r}: nothing else can be expressed here")


def layer_count(config: Config, key: str = "num_hidden_layers") -> int:
    """Return the number of layers, small enough to list them."""
    return number(config, key, most=MOST_LAYERS, least=1)


def listed(config: Config, key: str, known: tuple[str, ...], layers: int) -> list[str] | None:
    """Return the list at `key`, one word of `known` a layer; None where the config leaves it out."""
    found = config.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != layers:
        raise InputError(key, found, f"a list of num_hidden_layers = {layers} words")
    wrong = [word for word in found if word not in known]
    if wrong:
        raise InputError(key, wrong[0], "one of " + ", ".join(known))
    return found


def pattern(
    config: Config,
    layers: int,
    local: Callable[[int], bool] = lambda i: False,
    moe: Callable[[int], bool] = lambda i: False,
) -> str:
    """Return the letters of a decoder's blocks; `layer_types` of the config wins over `local`."""
    types = listed(config, "layer_types", ("full_attention", "sliding_attention"), layers)
    near = [local(i) for i in range(layers)] if types is None else [word == "sliding_attention" for word in types]
    return "".join(block_letter(near[i], moe(i)) for i in range(layers))
