"""Objects, their versions and their history; what a cluster's garbage collector does, too."""

import copy
import random
import re
import string
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

Key = tuple[str, str, str]  # Resource, namespace, name.
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SUFFIX = string.digits + string.ascii_lowercase


class Refused(Exception):
    """An answer that is a `Status` of failure."""

    def __init__(
        self, code: int, reason: str, message: str, *, name="", kind="", causes=()
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = {"name": name, "kind": kind} if name else {}
        if causes:
            self.details["causes"] = list(causes)

    @property
    def status(self) -> dict:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


@dataclass(frozen=True)
class Change:
    version: int
    resource: str
    namespace: str
    old: dict | None
    new: dict | None


def now(*, plus_seconds: int = 0) -> str:
    then = datetime.now(UTC) + timedelta(seconds=plus_seconds)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """Only the server's event loop touches it."""

    def __init__(self) -> None:
        self.version = self.oldest = 100
        """Oldest: changes after this one are still known."""
        self.history: list[Change] = []
        self.on_change: list[Callable[[], None]] = []
        self._items: dict[str, dict[tuple[str, str], dict]] = {}

    def items(self, resource: str, namespace: str = "") -> Iterator[dict]:
        for (place, _), item in sorted(self._items.get(resource, {}).items()):
            if namespace in ("", place):
                yield item

    def get(self, resource: str, namespace: str, name: str) -> dict:
        item = self._items.get(resource, {}).get((namespace, name))
        if item is None:
            message = f'{resource} "{name}" not found'
            kind = resource.partition(".")[0]
            raise Refused(404, "NotFound", message, name=name, kind=kind)
        return item

    def create(self, resource: str, namespace: str, item: dict, *, is_dry_run: bool) -> dict:
        item = copy.deepcopy(item)
        meta = item.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + "".join(random.choices(SUFFIX, k=5))
        name = meta.get("name") or ""
        if not NAME.fullmatch(name) or len(name) > 253:
            message = f'{resource} "{name}" is invalid: metadata.name: Invalid value: "{name}"'
            raise Refused(422, "Invalid", message, name=name or "unnamed")
        if namespace:
            if meta.get("namespace", namespace) != namespace:
                message = "the namespace of the provided object does not match the request"
                raise Refused(400, "BadRequest", message)
            meta["namespace"] = namespace
        if (namespace, name) in self._items.get(resource, {}):
            message = f'{resource} "{name}" already exists'
            raise Refused(409, "AlreadyExists", message, name=name)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        if not is_dry_run:
            self._put(resource, item)
        return item

    def update(self, resource: str, item: dict, *, is_dry_run: bool) -> dict:
        """Replace an object by a changed copy of it."""
        meta = item["metadata"]
        old = self.get(resource, meta.get("namespace", ""), meta["name"])
        wanted = meta.get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            message = f'Operation cannot be fulfilled on {resource} "{meta["name"]}": the object '
            message += "has been modified; please apply your changes to the latest version"
            raise Refused(409, "Conflict", message, name=meta["name"])
        item = copy.deepcopy(item)
        for key in ("uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"):
            if key in old["metadata"]:
                item["metadata"][key] = old["metadata"][key]
        if item == old:
            return old
        if item.get("spec") != old.get("spec"):
            item["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        if is_dry_run:
            return item
        self._put(resource, item)
        is_ending = item["metadata"].get("deletionGracePeriodSeconds") == 0
        if is_ending and not item["metadata"].get("finalizers"):
            self._drop(resource, item)
        return item

    def delete(self, resource: str, namespace: str, name: str, options: dict) -> dict:
        item = self.get(resource, namespace, name)
        meta = item["metadata"]
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != meta["uid"]:
            message = f"Precondition failed: UID in precondition: {uid}, in object: {meta['uid']}"
            raise Refused(409, "Conflict", message, name=name)
        if options.get("dryRun"):
            return item
        if resource == "namespaces":
            # It goes when a controller has removed all that is in it.
            status = {"status": {"phase": "Terminating"}}
            item = {**item, **status, "metadata": {**meta, "deletionTimestamp": now()}}
            self._put(resource, item)
            return item
        grace = self._grace(resource, item, options)
        if grace == 0 and not meta.get("finalizers"):
            self._drop(resource, item)
        elif grace < meta.get("deletionGracePeriodSeconds", grace + 1):
            # Its kubelet ends it, then deletes it once more, with no grace. After that it stays
            # until whoever set a finalizer has taken it away.
            item = copy.deepcopy(item)
            item["metadata"] |= {
                "deletionTimestamp": now(plus_seconds=grace),
                "deletionGracePeriodSeconds": grace,
            }
            self._put(resource, item)
        return item

    def compact(self) -> None:
        """Forget all history. Something of the cluster's own, as a lease, was written since."""
        self.version += 1
        self.oldest = self.version
        self.history.clear()

    def _grace(self, resource: str, item: dict, options: dict) -> int:
        if resource != "pods" or not item["spec"].get("nodeName"):
            return 0
        seconds = options.get("gracePeriodSeconds")
        if seconds is None:
            return item["spec"].get("terminationGracePeriodSeconds", 30)
        return seconds

    def _put(self, resource: str, item: dict) -> None:
        key = (item["metadata"].get("namespace", ""), item["metadata"]["name"])
        old = self._items.setdefault(resource, {}).get(key)
        self._changed(resource, key[0], old, item)
        item["metadata"]["resourceVersion"] = str(self.version)
        self._items[resource][key] = item

    def _drop(self, resource: str, item: dict) -> None:
        meta = item["metadata"]
        namespace = meta.get("namespace", "")
        del self._items[resource][namespace, meta["name"]]
        self._changed(resource, namespace, item, None)
        for other, items in list(self._items.items()):
            for owned in list(items.values()):
                owners = owned["metadata"].get("ownerReferences", [])
                if any(owner["uid"] == meta["uid"] for owner in owners):
                    place = owned["metadata"]
                    self.delete(other, place.get("namespace", ""), place["name"], {})

    def _changed(self, resource: str, namespace: str, old: dict | None, new: dict | None) -> None:
        self.version += 1
        self.history.append(Change(self.version, resource, namespace, old, new))
        for tell in self.on_change:
            tell()
