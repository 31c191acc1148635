"""Whether a summary or a comparison is what the shipped JSON Schema says."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator


@cache
def validator(name: str) -> Draft202012Validator:
    """Of the installed schema ``name``: summary or diff."""
    file = resources.files("xprof_py.postprocess").joinpath(f"{name}.schema.json")
    schema = json.loads(file.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@cache
def section_of(name: str, key: str) -> Draft202012Validator:
    """Of one top-level field of the schema ``name``."""
    whole = validator(name)
    return whole.evolve(schema={"$defs": whole.schema["$defs"], **whole.schema["properties"][key]})


def violations(found: dict[str, Any], name: str = "summary") -> list[str]:
    """One sentence for every place where ``found`` breaks the contract; empty where it keeps it."""
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(found)]
