"""What an API server knows of MPIJobs: as much of the operator's schema as a job of ours can touch.

Types, required fields, defaults and values to choose from are those of mpi-operator 0.8;
test_mpijobs.py holds them against the operator's own CustomResourceDefinition where that is there.
Neither the definition nor a webhook makes any field immutable: what the operator dislikes it tells
in events, after the object was taken. A field of pods that is not described here is refused, so
whoever lets `edl` submit another one describes it first.
"""

from functools import cache

from tests.kube.apiserver.schema import Schema

GROUP, VERSION, PLURAL = "kubeflow.org", "v2beta1", "mpijobs"

TEXT = {"type": "string"}
BOOLEAN = {"type": "boolean"}
INT = {"type": "integer", "format": "int32"}
LONG = {"type": "integer", "format": "int64"}
TIME = {"type": "string", "format": "date-time"}
OBJECT = {"type": "object"}
PORT = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
SIGN = r"(\+|-)?"
QUANTITY = {**PORT, "pattern": f"^{SIGN}{NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE]{SIGN}{NUMBER}))?$"}


def fields(*required: str, **properties: dict) -> dict:
    schema_of_object = {"type": "object", "properties": properties}
    return {**schema_of_object, "required": sorted(required)} if required else schema_of_object


def repeated(schema: dict, names: str) -> dict[str, dict]:
    """Properties of one schema; the names are words of a text."""
    return dict.fromkeys(names.split(), schema)


def list_of(items: dict) -> dict:
    return {"type": "array", "items": items}


def map_of(values: dict) -> dict:
    return {"type": "object", "additionalProperties": values}


def one_of(*values: str) -> dict:
    return {**TEXT, "enum": list(values)}


def or_else(schema: dict, default: object) -> dict:
    return {**schema, "default": default}


TEXTS = list_of(TEXT)
NAMED = fields(name=or_else(TEXT, ""))
PROFILE = fields("type", type=TEXT, localhostProfile=TEXT)
USER = {"runAsUser": LONG, "runAsGroup": LONG, "runAsNonRoot": BOOLEAN, "seccompProfile": PROFILE}
FILES = {
    "defaultMode": INT,
    "items": list_of(fields("key", "path", key=TEXT, path=TEXT, mode=INT)),
    "optional": BOOLEAN,
}
KEY = fields("key", key=TEXT, name=or_else(TEXT, ""), optional=BOOLEAN)
HANDLER = {
    "exec": fields(command=TEXTS),
    "tcpSocket": fields("port", port=PORT, host=TEXT),
    "httpGet": fields("port", port=PORT, host=TEXT, path=TEXT, scheme=TEXT),
}
PROBE = fields(
    **HANDLER,
    **repeated(INT, "initialDelaySeconds periodSeconds timeoutSeconds successThreshold"),
    failureThreshold=INT,
    terminationGracePeriodSeconds=LONG,
)
CONTAINER = fields(
    "name",
    **repeated(TEXT, "name image imagePullPolicy workingDir"),
    **repeated(TEXT, "terminationMessagePath terminationMessagePolicy"),
    **repeated(TEXTS, "command args"),
    **repeated(PROBE, "readinessProbe livenessProbe startupProbe"),
    env=list_of(
        fields(
            "name",
            name=TEXT,
            value=TEXT,
            valueFrom=fields(
                fieldRef=fields("fieldPath", fieldPath=TEXT, apiVersion=TEXT),
                secretKeyRef=KEY,
                configMapKeyRef=KEY,
            ),
        )
    ),
    ports=list_of(
        fields("containerPort", containerPort=INT, name=TEXT, protocol=or_else(TEXT, "TCP"))
    ),
    resources=fields(requests=map_of(QUANTITY), limits=map_of(QUANTITY)),
    volumeMounts=list_of(
        fields("name", "mountPath", name=TEXT, mountPath=TEXT, readOnly=BOOLEAN, subPath=TEXT)
    ),
    lifecycle=fields(preStop=fields(exec=HANDLER["exec"]), postStart=fields(exec=HANDLER["exec"])),
    securityContext=fields(
        **USER,
        **repeated(BOOLEAN, "allowPrivilegeEscalation privileged readOnlyRootFilesystem"),
        capabilities=fields(add=TEXTS, drop=TEXTS),
    ),
)
VOLUME = fields(
    "name",
    name=TEXT,
    configMap=fields(**FILES, name=or_else(TEXT, "")),
    secret=fields(**FILES, secretName=TEXT),
    emptyDir=fields(medium=TEXT, sizeLimit=QUANTITY),
    hostPath=fields("path", path=TEXT, type=TEXT),
    persistentVolumeClaim=fields("claimName", claimName=TEXT, readOnly=BOOLEAN),
)
TOLERATION = fields(**repeated(TEXT, "key operator value effect"), tolerationSeconds=LONG)
POD = fields(
    "containers",
    **repeated(list_of(CONTAINER), "containers initContainers"),
    **repeated(TEXT, "restartPolicy hostname subdomain nodeName priorityClassName schedulerName"),
    **repeated(BOOLEAN, "automountServiceAccountToken enableServiceLinks"),
    serviceAccountName=TEXT,
    volumes=list_of(VOLUME),
    terminationGracePeriodSeconds=LONG,
    nodeSelector=map_of(TEXT),
    tolerations=list_of(TOLERATION),
    imagePullSecrets=list_of(NAMED),
    securityContext=fields(
        **USER, fsGroup=LONG, fsGroupChangePolicy=TEXT, supplementalGroups=list_of(LONG)
    ),
)
REPLICAS = fields(
    replicas=INT,
    restartPolicy=TEXT,
    template=fields(
        metadata=fields(name=TEXT, namespace=TEXT, labels=map_of(TEXT), annotations=map_of(TEXT)),
        spec=POD,
    ),
)
RUN_POLICY = fields(
    **repeated(TEXT, "cleanPodPolicy managedBy"),
    **repeated(INT, "backoffLimit ttlSecondsAfterFinished"),
    suspend=or_else(BOOLEAN, False),
    activeDeadlineSeconds=LONG,
    schedulingPolicy=fields(
        **repeated(TEXT, "priorityClass queue"),
        **repeated(INT, "minAvailable scheduleTimeoutSeconds"),
        minResources=map_of(QUANTITY),
    ),
)
SPEC = fields(
    "mpiReplicaSpecs",
    mpiReplicaSpecs=map_of(REPLICAS),
    runPolicy=RUN_POLICY,
    slotsPerWorker=or_else(INT, 1),
    sshAuthMountPath=or_else(TEXT, "/root/.ssh"),
    mpiImplementation=or_else(one_of("OpenMPI", "Intel", "MPICH"), "OpenMPI"),
    launcherCreationPolicy=or_else(TEXT, "AtStartup"),
    runLauncherAsWorker=or_else(BOOLEAN, False),
)
CONDITION = fields(
    "type",
    "status",
    **repeated(TEXT, "type reason message"),
    **repeated(TIME, "lastUpdateTime lastTransitionTime"),
    status=one_of("True", "False", "Unknown"),
)
STATUS = fields(
    conditions=list_of(CONDITION),
    replicaStatuses=map_of(fields(active=INT, succeeded=INT, failed=INT, selector=TEXT)),
    **repeated(TIME, "startTime completionTime lastReconcileTime"),
)
MPIJOB = fields(apiVersion=TEXT, kind=TEXT, metadata=OBJECT, spec=SPEC, status=STATUS)


@cache
def schema() -> Schema:
    return Schema(MPIJOB)


def definition() -> dict:
    """The CustomResourceDefinition for a server that has none yet."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": MPIJOB},
    }
    names = {"kind": "MPIJob", "listKind": "MPIJobList", "plural": PLURAL, "singular": "mpijob"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }
