"""The two kinds of patches that clients of ours send."""

import copy

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

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
    """The object with a patch applied; raises ValueError for another kind."""
    if kind not in (MERGE, STRATEGIC):
        raise ValueError(f"no kind of patch here: {kind}")
    return merge(item, patch, MERGE_KEYS if kind == STRATEGIC else None)


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
