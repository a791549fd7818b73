"""What a kubelet makes of the volumes of a pod: folders, with the rights that `fsGroup` gives."""

import base64
import os
import subprocess

SECRET_MODE = 0o440
"""What `fsGroup` adds to the mode of a file that cannot be written."""


def source_of(volume, folder, group, *, cluster, claims):
    """The folder on the node that holds a volume.

    Args:
        volume: Of the pod's manifest.
        folder: Of the pod, on the node; what is in there lasts as long as the pod.
        group: The pod's `fsGroup`.
        cluster: Its namespace.
        claims: PersistentVolumeClaims to folders of this machine.
    """
    if "persistentVolumeClaim" in volume:
        source = claims[volume["persistentVolumeClaim"]["claimName"]]
        if source.stat().st_gid != group:  # When it is mounted first.
            subprocess.run(["chgrp", "-R", str(group), str(source)], check=True)
            subprocess.run(["chmod", "-R", "g+rwX", str(source)], check=True)
        return source
    target = folder / f"volume-{volume['name']}"
    if not target.exists():
        target.mkdir()
        os.chown(target, 0, group)
        # What is made in there is the group's.
        target.chmod(0o2777 if "emptyDir" in volume else 0o2755)
    if "emptyDir" not in volume:
        _write_files(volume, target, group, cluster)
    return target


def is_writable(volume, mounted):
    """Whether a container may write where it has mounted a volume."""
    return not (mounted.get("readOnly") or {"configMap", "secret"} & set(volume))


def _write_files(volume, target, group, cluster):
    if "configMap" in volume:
        described = volume["configMap"]
        texts = cluster.get("ConfigMap", described["name"])["data"]
        files = {name: text.encode() for name, text in texts.items()}
    else:
        described = volume["secret"]
        texts = cluster.get("Secret", described["secretName"])["data"]
        files = {name: base64.b64decode(text) for name, text in texts.items()}
    for entry in described.get("items") or [{"key": name, "path": name} for name in files]:
        path = target / entry["path"]
        path.write_bytes(files[entry["key"]])
        os.chown(path, 0, group)
        path.chmod(described.get("defaultMode", 0o644) | SECRET_MODE)
