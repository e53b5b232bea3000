#!/bin/bash
# Runs in the VM, as root: the suite on the mounted volume. SERVER and PORT name the server.
set -uo pipefail
useradd --user-group tests
mount -t nfs -o "vers=3,proto=tcp,nolock,port=$PORT,mountport=$PORT" "$SERVER:/main" /mnt || exit 125
mkdir /mnt/suite
chmod 755 /mnt/suite
/tools/pjdfstest --configuration-file /suite/config.toml --path /mnt/suite "$@" >/results/output 2>&1
status=$?
umount /mnt
exit $status
