"""The three kinds of patches."""

import copy

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"

# Lists that a strategic merge takes for maps, and by which field of their items.
MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "containerStatuses": "name",
    "env": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "tolerations": "key",
    "volumeMounts": "mountPath",
    "volumes": "name",
}


def apply(item: dict, kind: str, patch) -> dict:
    """The object with a patch applied.

    Raises ValueError where it does not fit.
    """
    if kind == MERGE:
        return merge(item, patch)
    if kind == STRATEGIC:
        return merge(item, patch, MERGE_KEYS)
    return _apply_operations(copy.deepcopy(item), patch)


def merge(old, new, merge_keys=None, key=""):
    if isinstance(new, dict):
        merged = dict(old) if isinstance(old, dict) else {}
        for name, value in new.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = merge(merged.get(name), value, merge_keys, name)
        return merged
    if isinstance(new, list) and merge_keys and key in merge_keys and isinstance(old, list):
        by = merge_keys[key]
        known = {item.get(by): item for item in old}
        for item in new:
            known[item.get(by)] = merge(known.get(item.get(by)), item, merge_keys)
        return list(known.values())
    return copy.deepcopy(new)


def _apply_operations(item: dict, operations: list) -> dict:
    for operation in operations:
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        try:
            target = item
            for part in parents:
                target = target[int(part)] if isinstance(target, list) else target[part]
            _apply_one(operation, target, last)
        except (KeyError, IndexError, TypeError) as e:
            raise ValueError(f"the server rejected our request: {operation}") from e
    return item


def _apply_one(operation: dict, target, last: str) -> None:
    kind = operation["op"]
    if isinstance(target, list):
        index = len(target) if last == "-" else int(last)
        if kind == "add":
            target.insert(index, operation["value"])
        elif kind == "replace":
            target[index] = operation["value"]
        else:
            del target[index]
        return
    if kind == "test":
        if target[last] != operation["value"]:
            raise ValueError(f"testing value {last} failed")
    elif kind == "remove":
        del target[last]
    else:
        if kind == "replace":
            target[last]
        target[last] = operation["value"]
