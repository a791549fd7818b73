"""A CustomResourceDefinition's schema: defaults, pruning, and what does not fit."""

import copy

import jsonschema

from tests.kube.apiserver.store import Refused


class Schema:
    def __init__(self, schema: dict) -> None:
        self._schema = schema
        self._validator = jsonschema.Draft202012Validator(_as_json_schema(schema))

    def admit(self, manifest: dict, *, is_strict: bool) -> dict:
        """The object as it is kept. Raises Refused, with 400 for fields that are not in the schema
        where the request is strict, else with 422."""
        unknown: list[str] = []
        pruned = _prune(copy.deepcopy(manifest), self._schema, "", unknown)
        # Checked by the server for all kinds, not by the schema.
        kept = ("apiVersion", "kind", "metadata")
        pruned |= {key: manifest[key] for key in kept if key in manifest}
        name = pruned["metadata"].get("name", "")
        if unknown and is_strict:
            said = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise Refused(400, "BadRequest", f"strict decoding error: {said}")
        wrong = sorted(self._validator.iter_errors(pruned), key=str)
        if wrong:
            said = "; ".join(f"{e.json_path.removeprefix('$.')}: {e.message[:300]}" for e in wrong)
            raise Refused(422, "Invalid", f'"{name}" is invalid: {said}', name=name)
        return pruned


def _prune(value, schema: dict, path: str, unknown: list[str]):
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        properties = schema.get("properties")
        if properties is None:
            values = schema.get("additionalProperties")
            if not isinstance(values, dict):
                return value
            return {k: _prune(v, values, f"{path}.{k}", unknown) for k, v in value.items()}
        at_root = {"apiVersion", "kind", "metadata"} if not path else set()
        for key in set(value) - set(properties) - at_root:
            unknown.append(f"{path}.{key}".lstrip("."))
            del value[key]
        for key, part in properties.items():
            if key not in value and "default" in part:
                value[key] = copy.deepcopy(part["default"])
            if key in value and key not in at_root:
                value[key] = _prune(value[key], part, f"{path}.{key}", unknown)
    elif isinstance(value, list) and "items" in schema:
        return [_prune(v, schema["items"], f"{path}[{n}]", unknown) for n, v in enumerate(value)]
    return value


def _as_json_schema(part):
    """OpenAPI's words for what JSON Schema says otherwise."""
    if isinstance(part, list):
        return [_as_json_schema(member) for member in part]
    if not isinstance(part, dict):
        return part
    json_schema = {
        key: _as_json_schema(member)
        for key, member in part.items()
        if key not in ("description", "format", "default")
    }
    if part.get("x-kubernetes-int-or-string"):
        json_schema.pop("anyOf", None)
        json_schema["type"] = ["integer", "string"]
    elif part.get("nullable") and isinstance(part.get("type"), str):
        json_schema["type"] = [part["type"], "null"]
    return json_schema
