#!/bin/sh
# Horovod's host discovery script: prints the hosts file that edl_horovod.cluster.pod.discovery keeps.
# usage: host-discovery.sh FILE
#
# Horovod runs it every second, so it starts nothing but one sed. A hosts file that is not there yet
# is waited for: a failure at the first time ends a job of Horovod, and an empty answer would say
# that no host is wanted. Later Horovod keeps what it had when this fails.
set -eu
file="${1:?usage: host-discovery.sh FILE}"
left="${EDL_HOSTS_WAIT_SECONDS:-60}"
while [ ! -f "$file" ]; do
  if [ "$left" -le 0 ]; then
    echo "there is no hosts file $file; does edl_horovod.cluster.pod.discovery run?" >&2
    exit 1
  fi
  sleep 1
  left=$((left - 1))
done
exec sed -e '/^#/d' -e '/^[[:space:]]*$/d' "$file"
