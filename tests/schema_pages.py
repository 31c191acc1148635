"""The tables of docs/summary.md and docs/comparing.md, written from the JSON Schemas that the package ships.

`python tests/schema_pages.py` writes them; a test holds that they are what the schemas say. To add a field: add it to
the schema, with its description, unit (x-unit), when it is null (x-null) and an example, and run this: it also adds
the field to tests/data/<name>_v1_fields.txt, whose lines may never change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = {"summary": ROOT / "docs" / "summary.md", "diff": ROOT / "docs" / "comparing.md"}
BEGIN = "<!-- From here on written by tests/schema_pages.py from postprocess/{name}.schema.json -->\n"

Schema = Mapping[str, Any]


def read_schema(name: str) -> dict[str, Any]:
    """The schema ``name`` (summary or diff) of the checkout."""
    schema: dict[str, Any] = json.loads((ROOT / "postprocess" / f"{name}.schema.json").read_text(encoding="utf-8"))
    return schema


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """(path, its schema, whether it is required) of every property below ``schema``; `[]` are entries, `*` any key.

    A `$ref` is not followed: what it names has fields of its own (`definitions`).
    """
    for part in (schema, *schema.get("allOf", ())):
        required = part.get("required", ())
        for key, found in part.get("properties", {}).items():
            here = f"{path}.{key}" if path else key
            yield here, found, key in required
            yield from fields(found, here)
    items, values = schema.get("items"), schema.get("additionalProperties")
    if isinstance(items, Mapping):
        yield from fields(items, f"{path}[]")
    if isinstance(values, Mapping):
        yield from fields(values, f"{path}.*")


def types(schema: Schema) -> list[str]:
    """The JSON types of a field, sorted; a named part of the schema is `$name`."""
    if "$ref" in schema:
        return [f"${schema['$ref'].rsplit('/', 1)[1]}"]
    if "anyOf" in schema:
        return sorted(name for part in schema["anyOf"] for name in types(part))
    if "const" in schema:
        return ["integer"]
    found = schema.get("type", "string" if "enum" in schema else "object")
    return [found] if isinstance(found, str) else sorted(found)


def frozen_lines(name: str) -> list[str]:
    """One line per field: path, types (of entries too), whether it may be absent, the values of an enumeration."""
    schema = read_schema(name)
    out = []
    for prefix, part in (("", schema), *((f"${key}.", part) for key, part in schema["$defs"].items())):
        if "enum" in part:
            out.append(f"{prefix[:-1]} = {','.join(part['enum'])}")
        for path, found, required in fields(part):
            told = f" = {','.join(found['enum'])}" if "enum" in found else ""
            out.append(f"{prefix}{path} {_nested_types(found)}{'' if required else ' optional'}{told}")
    return out


def _nested_types(schema: Schema) -> str:
    inner = schema.get("items", schema.get("additionalProperties"))
    of = f" of {_nested_types(inner)}" if isinstance(inner, Mapping) else ""
    both = "+".join(_nested_types(part) for part in schema.get("allOf", ()))
    return (both or "|".join(types(schema))) + of


def page(name: str) -> str:
    """The generated part of the page of ``name``."""
    schema = read_schema(name)
    lines = [BEGIN.format(name=name), *_table(schema, "")]
    for part, found in schema["$defs"].items():
        if "enum" in found:
            listed = ", ".join(f"`{value}`" for value in found["enum"])
            lines += [f"\n### {part}\n", f"{found['description']} One of {listed}."]
        else:
            lines += [f"\n### {part}\n", f"{found['description']}\n", *_table(found, "")]
    return "\n".join(lines) + "\n"


def _table(schema: Schema, path: str) -> list[str]:
    head = ["| field | type | unit | meaning | null when | example |", "| --- | --- | --- | --- | --- | --- |"]
    return head + [_row(*found) for found in fields(schema, path)]


def _row(path: str, found: Schema, required: bool) -> str:
    named = [f"[{name[1:]}](#{name[1:]})" if name.startswith("$") else name for name in types(found) if name != "null"]
    meaning = found["description"]
    if "enum" in found:
        meaning += ": " + ", ".join(f"`{value}`" for value in found["enum"])
    items = found.get("items", {})
    if isinstance(items, Mapping) and ("$ref" in items or "allOf" in items):
        target = items.get("$ref") or items["allOf"][0]["$ref"]
        meaning += f"; entries are [{target.rsplit('/', 1)[1]}](#{target.rsplit('/', 1)[1]})"
    examples = found.get("examples") or (items.get("examples") if isinstance(items, Mapping) else None)
    example = f"`{json.dumps(examples[0], ensure_ascii=False).replace('|', chr(92) + '|')}`" if examples else ""
    optional = "" if required else " (may be absent)"
    cells = [f"`{path}`{optional}", " ".join(named), found.get("x-unit", ""), meaning, found.get("x-null", ""), example]
    return "| " + " | ".join(cells) + " |"


def frozen_file(name: str) -> Path:
    """The lines of every field that was ever in version 1."""
    return ROOT / "tests" / "data" / f"{name}_v1_fields.txt"


def write_pages() -> None:
    """Replace what follows the marker in both pages, and add new fields to the frozen ones."""
    for name, file in PAGES.items():
        kept = file.read_text(encoding="utf-8").split(BEGIN.format(name=name))[0]
        file.write_text(kept + page(name), encoding="utf-8")
        frozen = frozen_file(name).read_text(encoding="utf-8").splitlines() if frozen_file(name).exists() else []
        frozen += [line for line in frozen_lines(name) if line not in frozen]
        frozen_file(name).write_text("".join(f"{line}\n" for line in frozen), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
