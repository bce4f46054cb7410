"""The command `manyhands new`: writes a small project to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from manyhands.errors import ConfigError


def new(folder: Annotated[Path, Parameter(help="a folder that does not exist yet")], /) -> None:
    """Write a small project that trains with two workers: model, data, a script, a test."""
    from jinja2 import Environment, StrictUndefined

    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{str(folder)!r} exists; choose the name of a new folder") from None
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be made: {error.strerror}") from None
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    for template in files(__package__).joinpath("project").iterdir():
        text = environment.from_string(template.read_text(encoding="utf-8"))
        place = folder / template.name.removesuffix(".j2")
        place.write_text(text.render(name=folder.resolve().name), encoding="utf-8")
    print(f"{folder} holds a model, data, a script and a test; try it:")
    print(f"  cd {folder} && python train.py")
