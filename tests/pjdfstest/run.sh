#!/bin/bash
# Runs in the VM, as root: the suite on a mounted volume: run.sh cairn|peer [TEST...]
# SERVER and PORT name the server `cairn`; `peer` is the guest's own kernel server on ext4.
set -uo pipefail
readonly which=$1
shift
useradd --user-group tests

mount_peer() {
    set -e
    modprobe loop
    truncate --size 1G /root/disk
    mkfs.ext4 -q /root/disk
    mkdir /export
    mount -o loop /root/disk /export
    guest-service nfs
    modprobe nfsd
    mount -t nfsd nfsd /proc/fs/nfsd
    echo '/export 127.0.0.1(rw,no_root_squash,sync,no_subtree_check,insecure)' >/etc/exports
    exportfs -ra
    rpc.nfsd 4
    rpc.mountd
    mount -t nfs -o vers=3,proto=tcp,nolock 127.0.0.1:/export /mnt
}

suite() {
    local config=$1
    shift
    /tools/pjdfstest --configuration-file "$config" --path /mnt/suite "$@"
}

mkdir -p /mnt
if [[ $which == peer ]]; then
    (mount_peer) || exit 125
else
    mount -t nfs -o "vers=3,proto=tcp,nolock,port=$PORT,mountport=$PORT" "$SERVER:/main" /mnt || exit 125
fi
mkdir /mnt/suite
chmod 755 /mnt/suite
status=0
{
    if [[ $# -gt 0 ]]; then
        suite /suite/config.toml "$@" || status=$?
    else
        # Read-only mounts first and in a process of their own: other tests leave files open in theirs, and
        # the client then refuses to make the mount read-only.
        suite /suite/config.toml erofs || status=$?
        sed 's/^allow_remount = true/allow_remount = false/' /suite/config.toml >/tmp/config.toml
        suite /tmp/config.toml || status=$?
    fi
} >/results/output 2>&1
umount /mnt
exit $status
