"""What a Python configuration of torchtitan sets, as command-line flags: its text is parsed and never run.

Read are `Trainer.Config(training=TrainingConfig(...), ...)` and straight-line assignments `config.section.name = ...`
of one function, as release 0.3.0 and the main branch of 2026 write them (`models/*/config_registry.py`,
`torchtitan_recipes/`).
"""

import ast
import json
from collections.abc import Iterator

from sim.plans.flags import MAX_TEXT
from sim.plans.torchtitan import CHECKPOINTING, CLASSES
from sim.specs import InputError
from sim.specs.fields import short

SECTIONS = ("training", "parallelism", "compile", CHECKPOINTING)
"""What a plan is read from; the rest is listed as not read."""

CHOICE = "activation_checkpoint:"
LARGEST = 4_096
"""Characters of an expression that is kept."""


def is_configuration(text: str) -> bool:
    """Return whether a text is a Python configuration, and no flags."""
    return "Config(" in text or any(line.strip().startswith("config.") for line in text.splitlines())


def from_configuration(text: str) -> list[str]:
    """Return the flags that a Python configuration states: lists as JSON, what is no plain data as its expression.

    Raises:
        InputError: too long, no Python, several functions that set something, or something is set in another way.
    """
    if len(text) > MAX_TEXT:
        raise InputError("configuration", f"{len(text)} characters", f"at most {MAX_TEXT}")
    try:
        parsed = ast.parse(text)
        held = [_Settings(part.body) for part in (parsed, *_functions(parsed))]
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError("configuration", short(text, 80), "flags, or a Python module") from None
    setting = [each for each in held if each.flags]
    if len(setting) > 1:
        raise InputError("configuration", f"{len(setting)} functions that set one", "one of them alone")
    return setting[0].words() if setting else []


def _functions(parsed: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


class _Settings:
    """What the statements of one body set, later ones over earlier ones: text by "section.name"."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self.flags: dict[str, str] = {}
        self.loose: list[str] = []
        self.local: dict[str, ast.expr] = {}
        for statement in body:
            self._statement(statement)

    def words(self) -> list[str]:
        """Return them as flags."""
        chosen = [f"{CHOICE}{self.flags[CHECKPOINTING]}"] if CHECKPOINTING in self.flags else []
        return [*self.loose, *chosen, *(f"--{k}={v}" for k, v in self.flags.items() if k != CHECKPOINTING)]

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        value = getattr(statement, "value", None)
        if isinstance(value, ast.expr) and (name := _place(target)):
            self._set(name, value)
            return
        for node in ast.walk(statement):
            if (name := _stored(node)).partition(".")[0] in SECTIONS:
                told = f"config.{name} in line {statement.lineno}"
                raise InputError("configuration", told, "an assignment by itself: nothing of the module is run")
        if isinstance(target, ast.Name) and isinstance(value, ast.expr):
            self.local[target.id] = value
        if isinstance(value, ast.Call) and isinstance(statement, ast.Assign | ast.Return):
            self._made(value, target)

    def _made(self, call: ast.Call, target: ast.expr | None) -> None:
        """Read a Trainer.Config; another call that makes the configuration is named."""
        if ast.unparse(call.func).split(".")[-2:] == ["Trainer", "Config"]:
            for name, value in _keywords(call, "config"):
                self._set(name, value)
        elif isinstance(target, ast.Name) and target.id == "config":
            self.loose.append(f"config = {_text(call, 80)}")

    def _set(self, name: str, value: ast.expr) -> None:
        section, _, inside = name.partition(".")
        for old in [key for key in self.flags if f"{key}.".startswith(f"{name}.")]:
            del self.flags[old]
        value = self.local.get(value.id, value) if isinstance(value, ast.Name) else value
        if section in SECTIONS and not inside:
            self._section(section, value)
        elif not _none(value):
            self.flags[name] = _data(value)

    def _section(self, section: str, value: ast.expr) -> None:
        """Read the object of a section: FullAC.Config(), TrainingConfig(...), CompileConfig() or None."""
        call = value if isinstance(value, ast.Call) else None
        made = ast.unparse(call.func) if call else ""
        if section == CHECKPOINTING:
            kinds = [kind for kind, text in CLASSES.items() if text == (f"{made}()" if call else ast.unparse(value))]
            if not kinds:
                raise InputError(f"config.{section}", _text(value, 80), "one of " + ", ".join(CLASSES.values()))
            self.flags[section] = kinds[0]
        elif not made.endswith(f"{section.title()}Config") and not _none(value):
            raise InputError(f"config.{section}", _text(value, 80), f"{section.title()}Config(...)")
        if section == "compile" and call and all(each.arg != "enable" for each in call.keywords):
            self.flags["compile.enable"] = "True"  # the main branch's has no switch: it is there, or it is not
        for name, each in _keywords(call, f"config.{section}") if call else ():
            self._set(f"{section}.{name}", each)


def _place(target: ast.AST | None) -> str:
    """Return the "section.name" that an assignment to `config.section.name` sets, or ""."""
    path: list[str] = []
    while isinstance(target, ast.Attribute):
        path.insert(0, target.attr)
        target = target.value
    return ".".join(path) if isinstance(target, ast.Name) and target.id == "config" else ""


def _stored(node: ast.AST) -> str:
    return _place(node) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) else ""


def _keywords(call: ast.Call, place: str) -> Iterator[tuple[str, ast.expr]]:
    if call.args or any(each.arg is None for each in call.keywords):
        raise InputError(place, ast.unparse(call)[:80], "arguments by name")
    return ((str(each.arg), each.value) for each in call.keywords)


def _none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _text(value: ast.expr, most: int) -> str:
    return short(ast.unparse(value), most)


def _data(value: ast.expr) -> str:
    """Return plain data as a flag holds it, and the expression of anything else."""
    try:
        held = ast.literal_eval(value)
        return str(held) if isinstance(held, str | int | float) else json.dumps(held)
    except (ValueError, TypeError):
        return _text(value, LARGEST)
