"""What a cluster checks before it takes an object: rights, quotas, sizes, shapes."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from edl_horovod.cluster.objects import KINDS, Kind
from tests.kube import mpijobs, pod_security
from tests.kube.apiserver.store import Refused, Store

MAX_DATA_BYTES = 1024 * 1024
MASTERS = "system:masters"
NAMESPACE = KINDS["Namespace"]
KINDS_HERE = {kind.resource: kind for kind in KINDS.values()}
SELF_REVIEW = KINDS["SelfSubjectAccessReview"].resource
ENFORCE = "pod-security.kubernetes.io/enforce"
ROLES = KINDS["Role"].resource
BINDINGS = KINDS["RoleBinding"].resource
WITH_STATUS = ("pods", "resourcequotas", "jobs.batch", "mpijobs.kubeflow.org")


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One request, as rights are asked for."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def group(self) -> str:
        return self.resource.partition(".")[2]

    @property
    def part(self) -> str:
        """As a rule names it, for instance `pods/log`."""
        plural = self.resource.partition(".")[0]
        return f"{plural}/{self.subresource}" if self.subresource else plural


@dataclass
class Admission:
    store: Store
    has_mpijobs: bool = True
    tokens: dict[str, User] = field(default_factory=dict)

    def kind(self, group_version: str, plural: str) -> Kind | None:
        for kind in KINDS_HERE.values():
            if (kind.api_version, kind.plural) == (group_version, plural):
                return kind if kind.name != "MPIJob" or self.has_mpijobs else None
        return None

    def review(self, namespace: str, body: dict) -> dict:
        """A LocalSubjectAccessReview with its answer; it is kept nowhere. Raises Refused."""
        if body["spec"]["resourceAttributes"].get("namespace") != namespace:
            message = "spec.resourceAttributes.namespace: must match metadata.namespace"
            raise Refused(422, "Invalid", message)
        user = User(body["spec"]["user"], tuple(body["spec"].get("groups", ())))
        return self.self_review(user, body)

    def self_review(self, user: User, body: dict) -> dict:
        """A SelfSubjectAccessReview of a user with its answer; it is kept nowhere."""
        asked = body["spec"]["resourceAttributes"]
        group = f".{asked['group']}" if asked.get("group") else ""
        place = (asked.get(key, "") for key in ("namespace", "name", "subresource"))
        request = Request(asked["verb"], asked["resource"] + group, *place)
        return {**body, "status": {"allowed": self._may(user, request)}}

    def authorize(self, user: User, request: Request) -> None:
        """RBAC by Roles and RoleBindings. Raises Refused."""
        if self._may(user, request):
            return
        namespace = request.namespace
        scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        named = f' "{request.name}"' if request.name else ""
        message = (
            f'{request.resource}{named} is forbidden: User "{user.name}" cannot {request.verb} '
            f'resource "{request.part}" in API group "{request.group}" {scope}'
        )
        plural = request.resource.partition(".")[0]
        raise Refused(403, "Forbidden", message, name=request.name, kind=plural)

    def _may(self, user: User, request: Request) -> bool:
        # Kubernetes allows the second to all who have logged in.
        if MASTERS in user.groups or (request.verb, request.resource) == ("create", SELF_REVIEW):
            return True
        return any(_allows(rule, request) for rule in self._rules_of(user, request.namespace))

    def _rules_of(self, user: User, namespace: str) -> Iterator[dict]:
        for binding in self.store.items(BINDINGS, namespace or "-"):
            if any(_is_subject(subject, user) for subject in binding.get("subjects", [])):
                role = self.store.get(ROLES, namespace, binding["roleRef"]["name"])
                yield from role.get("rules", [])

    def check_rights_given(self, user: User, kind: Kind, item: dict, namespace: str) -> None:
        """Nobody gives away a right that he does not have. Raises Refused.

        A binding's Role is looked up for that, so it must be there; not for administrators.
        """
        if kind.resource not in (ROLES, BINDINGS):
            return
        if kind.resource == ROLES:
            role, verb = item, "escalate"
        else:
            role, verb = {"metadata": {"name": item["roleRef"]["name"]}}, "bind"
        if self._may(user, Request(verb, ROLES, namespace, role["metadata"]["name"])):
            return
        if kind.resource == BINDINGS:
            role = self._role_of_binding(namespace, role["metadata"]["name"])
        rules = list(self._rules_of(user, namespace))
        lacking = [
            right
            for given_rule in role["rules"]
            for right in _single(given_rule)
            if not any(_allows(rule, right) for rule in rules)
        ]
        if lacking:
            name = item["metadata"]["name"]
            groups = " ".join(f'"{group}"' for group in (*user.groups, "system:authenticated"))
            message = (
                f'{kind.resource} "{name}" is forbidden: user "{user.name}" (groups=[{groups}]) '
                "is attempting to grant RBAC permissions not currently held:\n"
                + "\n".join(sorted(map(_compact, lacking)))
            )
            raise Refused(403, "Forbidden", message, name=name, kind=kind.plural)

    def _role_of_binding(self, namespace: str, name: str) -> dict:
        """Kubernetes 1.36 looks for the Role, and says that there is no RoleBinding of its name."""
        try:
            return self.store.get(ROLES, namespace, name)
        except Refused as e:
            message = f'{BINDINGS} "{name}" not found'
            kind = BINDINGS.partition(".")[0]
            raise Refused(404, "NotFound", message, name=name, kind=kind) from e

    def admit(self, kind: Kind, item: dict, *, namespace: str, is_strict: bool) -> dict:
        """The object as it is kept. Raises Refused."""
        if kind.name == "MPIJob":
            item = mpijobs.schema().admit(item, is_strict=is_strict)
        elif kind.name == "Pod":
            _check_pod(item)
            self._check_pod_security(item, namespace)
        elif kind.name in ("ConfigMap", "Secret"):
            _check_size(kind, item)
        return item

    def _check_pod_security(self, item: dict, namespace: str) -> None:
        """Raises Refused where the namespace enforces a standard that the pod does not meet.

        Here every other standard than `privileged` is `restricted`, as for Kubernetes a misspelt
        one is.
        """
        labels = self.store.get("namespaces", "", namespace)["metadata"].get("labels", {})
        standard = labels.get(ENFORCE, "privileged")
        if standard != "privileged" and (problems := pod_security.violations(item)):
            name = item.get("metadata", {}).get("name", "")
            message = f'pods "{name}" is forbidden: violates PodSecurity "{standard}:latest": '
            message += ", ".join(problems)
            raise Refused(403, "Forbidden", message, name=name, kind="pods")

    def check_namespace(self, kind: Kind, name: str, namespace: str) -> None:
        """Raises Refused where it is not there, or is on its way out."""
        status = self.store.get("namespaces", "", namespace).get("status", {})
        if status.get("phase") == "Terminating":
            message = (
                f'{kind.resource} "{name}" is forbidden: unable to create new content in namespace '
                f"{namespace} because it is being terminated"
            )
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise Refused(403, "Forbidden", message, name=name, kind=kind.plural, causes=[cause])

    def check_quota(self, kind: Kind, item: dict, namespace: str) -> None:
        """Raises Refused where one more object is one too many."""
        used = sum(1 for _ in self.store.items(kind.resource, namespace))
        for quota in self.store.items("resourcequotas", namespace):
            for key, most in quota.get("status", {}).get("hard", {}).items():
                if key in (kind.resource, f"count/{kind.resource}") and used + 1 > int(most):
                    name = item["metadata"].get("name", "")
                    raise Refused(
                        403,
                        "Forbidden",
                        f'{kind.resource} "{name}" is forbidden: exceeded quota: '
                        f"{quota['metadata']['name']}, requested: {key}=1, used: {key}={used}, "
                        f"limited: {key}={most}",
                        name=name,
                        kind=kind.plural,
                    )


def _is_subject(subject: dict, user: User) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return subject["name"] in ((user.name,) if subject["kind"] == "User" else user.groups)


def _single(rule: dict) -> Iterator[Request]:
    """All that a rule allows, one by one."""
    parts = (rule["verbs"], rule["apiGroups"], rule["resources"], rule.get("resourceNames", [""]))
    for verb, group, resource, name in itertools.product(*parts):
        plural, _, part = resource.partition("/")
        yield Request(verb, f"{plural}.{group}" if group else plural, "", name, part)


def _compact(request: Request) -> str:
    named = f', ResourceNames:["{request.name}"]' if request.name else ""
    resources = f'APIGroups:["{request.group}"], Resources:["{request.part}"]'
    return f'{{{resources}{named}, Verbs:["{request.verb}"]}}'


def _allows(rule: dict, request: Request) -> bool:
    is_named = not rule.get("resourceNames") or request.name in rule["resourceNames"]
    wanted = {"verbs": request.verb, "apiGroups": request.group, "resources": request.part}
    return is_named and all({word, "*"} & {*rule.get(key, [])} for key, word in wanted.items())


def _check_pod(item: dict) -> None:
    name = item.get("metadata", {}).get("name", "")
    containers = item.get("spec", {}).get("containers")
    if not containers or not all(container.get("name") for container in containers):
        field_name = "spec.containers[0].name" if containers else "spec.containers"
        message = f'Pod "{name}" is invalid: {field_name}: Required value'
        raise Refused(422, "Invalid", message, name=name, kind="Pod")


def _check_size(kind: Kind, item: dict) -> None:
    data = (item.get("data") or {}) | (item.get("binaryData") or {})
    name = item.get("metadata", {}).get("name", "")
    if sum(len(value.encode()) for value in data.values()) > MAX_DATA_BYTES:
        message = f'{kind.name} "{name}" is invalid: []: Too long: must have at most 1048576 bytes'
        raise Refused(422, "Invalid", message, name=name, kind=kind.name)
