"""The page of the command line: each command's options as tables, from the program itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from manyhands.cli.app import load_command

if TYPE_CHECKING:
    from cyclopts import App

KINDS = {"int": "N", "float": "X", "Path": "PATH", "str": "TEXT"}
DEFAULT = re.compile(r"\s*\[(?:default: )?([^\[\]]*(?:\[[^\]]*\])?)\]$")
UNNAMED = {"Arguments": "", "Parameters": ""}
INTRODUCTION = """# The command line

Every command with all its options, as the program declares them. `manyhands COMMAND --help` prints
the same. For `train` and `compare` it prints the common options only; `--help-all` prints all.

- Each option of `train` is a keyword of [`mh.fit`](api.md): `--batch-size 64` is `batch_size=64`.
- `compare` takes several values of an option, separated by commas: `--batch-size 64,128`.
- Names in parentheses after a meaning are the strategies or optimizers that use the option;
  `(private)` marks an option of private runs.
- `package.module:name` names an object in your Python code.
- `N` is a whole number, `X` any number. An option without a value is a switch. A switch that has
  a default can be turned off again: `--no-OPTION`.
- `manyhands --install-completion` installs completion for bash, zsh or fish.
"""


def describe_commands(app: App) -> str:
    """Return the page: one section for each command, one table for each group of options."""
    names = [name for name in app if not name.startswith("-")]
    return INTRODUCTION + "".join(_describe(load_command(name), name) for name in names)


def _describe(command: App, name: str) -> str:
    first, _, rest = command.help.strip().partition("\n")
    text = f"{first}\n\n{re.sub(r'^ +', '', rest.strip(), flags=re.MULTILINE)}".rstrip()
    arguments = [a for a in command.assemble_argument_collection() if a.show]
    groups: dict[str, list[Any]] = {}
    for argument in arguments:
        (group, *_) = (g.name for g in argument.parameter.group)
        groups.setdefault(UNNAMED.get(group, group), []).append(argument)
    usage = " ".join(_name_placeholder(a) for a in arguments if _is_positional(a))
    usage += " [OPTIONS]" if any(not _is_positional(a) for a in arguments) else ""
    parts = [f"\n## manyhands {name}\n\n```\nmanyhands {name} {usage.strip()}".rstrip()]
    parts.append(f"\n```\n\n{text}\n")
    parts += [_make_table(group, members) for group, members in groups.items()]
    return "".join(parts)


def _make_table(group: str, arguments: list[Any]) -> str:
    title = f"\n**{group}**\n" if group else ""
    head = "\n| option | value | default | meaning |\n|---|---|---|---|\n"
    return title + head + "".join(map(_make_row, arguments))


def _make_row(argument: Any) -> str:
    text, default = argument.parameter.help or "", ""
    if found := DEFAULT.search(text):
        text, default = text[: found.start()], found[1]
    elif argument.field_info.default not in (None, argument.field_info.empty, False):
        default = str(argument.field_info.default)
    elif argument.required:
        default = "required"
    if default == "False":
        default = "off"
    opposites = {f"--no-{name.lstrip('-')}" for name in argument.names}
    names = ", ".join(f"`{n}`" for n in argument.names if n not in opposites)
    if _is_positional(argument):
        names = f"`{_name_placeholder(argument)}`"
    cells = (names, _describe_value(argument), _escape(default), _escape(text))
    return f"| {' | '.join(cells)} |\n"


def _is_positional(argument: Any) -> bool:
    return argument.field_info.kind is not argument.field_info.KEYWORD_ONLY


def _name_placeholder(argument: Any) -> str:
    name = argument.names[0].lstrip("-").upper()
    return f"{name}..." if argument.field_info.kind is argument.field_info.VAR_POSITIONAL else name


def _describe_value(argument: Any) -> str:
    """Return the values that an option takes; none for a switch."""
    hint = str(argument.hint)
    choices = [*(["N"] if re.search(r"\bint\b", hint) else []), *(argument.get_choices() or ())]
    if argument.get_choices():
        return ", ".join(f"`{choice}`" for choice in choices)
    if hint in ("<class 'bool'>", "bool | None", "typing.Optional[bool]"):
        return ""
    if "tuple" in hint:
        return "`X,X,…`"
    named = [short for long, short in KINDS.items() if re.search(rf"\b{long}\b", hint)]
    return f"`{' or '.join(named)}`" if named else ""


def _escape(text: str) -> str:
    """Return text that Markdown shows as it is, in a cell of a table."""
    return re.sub(r"([|*_<\[\]`])", r"\\\1", " ".join(text.split()))
