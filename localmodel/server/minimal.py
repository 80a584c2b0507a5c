"""The smallest value that a JSON schema allows: what a forced tool or format gets where no model chooses."""

from typing import Any

from traces.schema import JsonObject

_MAX_DEPTH = 12
_MAX_SIZE = 64
_MAX_VALUES = 1000


def minimal(schema: Any) -> Any:
    """A value for `schema`: required properties only, shortest texts and lists, 0 where a number may be 0.

    `$ref` is followed inside the document. What is not understood, what nests deeper than 12 and what comes after
    1,000 values is null: a schema must not make the server write a gigabyte.
    """
    return _Builder(schema if isinstance(schema, dict) else {}).value(schema, 0)


class _Builder:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._left = _MAX_VALUES

    def value(self, schema: Any, depth: int) -> Any:
        self._left -= 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._left < 0:
            return None if depth else {}
        if isinstance(schema.get("$ref"), str):
            return self.value(_resolve(schema["$ref"], self._root), depth + 1)
        for name in ("const", "default"):
            if name in schema:
                return schema[name]
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                return self.value(schema[name][0], depth + 1)
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return schema["enum"][0]
        return self._typed(schema, depth)

    def _typed(self, schema: JsonObject, depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        if kind == "object" or (kind is None and ("properties" in schema or depth == 0)):
            return self._object(schema, depth)
        if kind == "array":
            return [self.value(schema.get("items"), depth + 1) for _ in range(_bounded(schema.get("minItems")))]
        if kind == "string":
            return "x" * _bounded(schema.get("minLength"))
        if kind in ("integer", "number"):
            return _number(schema)
        return False if kind == "boolean" else None

    def _object(self, schema: JsonObject, depth: int) -> JsonObject:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return {}
        names = [name for name in required[:_MAX_SIZE] if isinstance(name, str)]
        return {name: self.value(properties.get(name, {"type": "string"}), depth + 1) for name in names}


def _number(schema: JsonObject) -> int | float:
    low, above, high = (_bound(schema.get(name)) for name in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and low > 0:
        return low
    if above is not None and above >= 0:
        return int(above) + 1
    return high if high is not None and high < 0 else 0


def _bound(value: Any) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _bounded(value: Any) -> int:
    return min(max(value, 0), _MAX_SIZE) if isinstance(value, int) else 0


def _resolve(reference: str, root: JsonObject) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found
