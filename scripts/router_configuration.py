"""Writes docs/configuration.md: every field of the router's configuration, from the model itself.

.venv/bin/python scripts/router_configuration.py            # writes the file
.venv/bin/python scripts/router_configuration.py --check    # fails when the file does not fit the model
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dolphin_router.contract import RouterConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# The router's configuration

`dolphin-router serve --config router.yaml` reads these fields, in YAML or JSON, and reads them again when the file
changes. [docs/router.md](router.md) has an example, and says which fields need a restart. A field that is not listed
here is refused, as is a value of another type: the message names the field, what is wrong with it and what to do.
Addresses, certificates and keys are flags: `dolphin-router serve --help`.

This page is made by `.venv/bin/python scripts/router_configuration.py` from `dolphin_router.contract.RouterConfig`.
"""

_RULE = "|---|---|---|---|"
_NAMES = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}


def page() -> str:
    """Return the whole page."""
    sections = [_section(model, path) for path, model in _models(RouterConfig, "")]
    return "\n".join([INTRODUCTION, *sections])


def _models(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a model and those within it, each once, with the path at which it stands first."""
    yield path, model
    seen = {model}
    for name, field in model.model_fields.items():
        part = _part_of(field.annotation)
        if part is not None and part not in seen:
            seen.add(part)
            yield from _models(part, f"{path}.{name}" if path else name)


def _section(model: type[BaseModel], path: str) -> str:
    texts = attribute_texts(model)
    summary = inspect.getdoc(model) or ""
    lines = [f"## {_title(path)}", "", " ".join(summary.split()), "", "| field | type | default | |", _RULE]
    for name, field in model.model_fields.items():
        part = _part_of(field.annotation)
        text = texts.get(name) or ("" if part is None or get_args(field.annotation) else inspect.getdoc(part) or "")
        cells = (
            f"`{name}`",
            _type_text(field.annotation, field.metadata),
            _default_text(field),
            " ".join(text.split()),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _title(path: str) -> str:
    if not path:
        return "At the top"
    return "A worker" if path.startswith("workers.") else f"`{path}`"


def attribute_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the strings that stand behind a model's fields in its source, each in one line, by field."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    texts[statement.target.id] = " ".join(text.split()).replace("``", "`")
    return texts


def _part_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field holds, by itself or in a list; none where it holds plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((part for argument in get_args(annotation) if (part := _part_of(argument)) is not None), None)


def _type_text(annotation: Any, metadata: list[Any]) -> str:
    """Return a field's type in words, with what its values may be."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _type_text(next(argument for argument in arguments if argument is not NoneType), metadata)
    if origin is Literal:
        values = [f"`{value}`" for value in arguments]
        return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
    if origin is tuple:
        part = _part_of(arguments[0])
        return f"list of {'workers' if part is not None else 'whole numbers'}" + _bounds_text(arguments[0])
    if hasattr(annotation, "__metadata__"):
        return _type_text(arguments[0], [*arguments[1:], *metadata])
    if _part_of(annotation) is not None:
        return "see below"
    return _NAMES[annotation] + _bounds_of(metadata)


def _bounds_text(annotation: Any) -> str:
    return _bounds_of(list(getattr(annotation, "__metadata__", ())))


def _bounds_of(metadata: list[Any]) -> str:
    """Return the limits of a number in words."""
    found: dict[str, Any] = {}
    for entry in metadata:
        for constraint in entry.metadata if isinstance(entry, FieldInfo) else [entry]:
            for name in ("ge", "gt", "le"):
                value = getattr(constraint, name, None)
                if value is not None:
                    found[name] = value
    if "ge" in found and found.get("le", 2**53) < 2**53 - 1:
        return f", {found['ge']:,} to {found['le']:,}"
    if "gt" in found:
        return f" above {found['gt']:,}"
    return f", {found['ge']:,} or more" if "ge" in found else ""


def _default_text(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined:
        return "needed"
    if default is None or default == ():
        return "none"
    if isinstance(default, BaseModel):
        return "as below"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def main() -> int:
    """Write the page, or compare it; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail when the page is out of date")
    arguments = parser.parse_args()
    text = page()
    if not arguments.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.name} does not fit RouterConfig. Run: .venv/bin/python {sys.argv[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
