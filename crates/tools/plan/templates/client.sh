#!/bin/bash
# Mounts a Cairn volume at boot, now and after each reboot. It may run again.
set -Eeuo pipefail
# shellcheck source=/dev/null
. "${CAIRN_DEPLOY_ENV:-/etc/cairn/deploy.env}"
export DEBIAN_FRONTEND=noninteractive

readonly WAIT_SECONDS_MAX=${CAIRN_WAIT_SECONDS_MAX:-900}
readonly CONNECT_SECONDS_MAX=5

fail() {
    echo "cairn-mount: $*" >&2
    exit 1
}

need_client() {
    [[ ! -x /sbin/mount.nfs && ! -x /usr/sbin/mount.nfs ]] || return 0
    if command -v apt-get >/dev/null; then
        apt-get -o DPkg::Lock::Timeout=300 update -qq
        apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends nfs-common
    elif command -v dnf >/dev/null; then
        dnf install -y -q nfs-utils
    else
        fail "there is no NFS client here; install nfs-common or nfs-utils"
    fi
}

# A mount of a server that is not there yet would hang.
await_server() {
    until timeout "$CONNECT_SECONDS_MAX" bash -c "exec 3<>/dev/tcp/$CAIRN_SERVER/$CAIRN_PORT" 2>/dev/null; do
        [[ $SECONDS -lt $WAIT_SECONDS_MAX ]] ||
            fail "nothing answers at $CAIRN_SERVER port $CAIRN_PORT; is the server up, and may this machine reach it?"
        sleep 2
    done
}

write_fstab() {
    local source=$CAIRN_SERVER:/$CAIRN_VOLUME options
    # Locks are refused over NFSv3, so the client has to keep them to itself. Hard: no error for a server that restarts.
    options=vers=3,proto=tcp,hard,nolock,port=$CAIRN_PORT,mountport=$CAIRN_PORT,nconnect=$CAIRN_NCONNECT
    sed -i "\\| $CAIRN_MOUNT_POINT nfs |d" /etc/fstab
    echo "$source $CAIRN_MOUNT_POINT nfs $options,_netdev,nofail,noatime 0 0" >>/etc/fstab
}

need_client
await_server
mountpoint -q "$CAIRN_MOUNT_POINT" || mkdir -p "$CAIRN_MOUNT_POINT"
write_fstab
mountpoint -q "$CAIRN_MOUNT_POINT" || mount "$CAIRN_MOUNT_POINT"
mountpoint -q "$CAIRN_MOUNT_POINT" || fail "$CAIRN_MOUNT_POINT is not mounted"
echo "cairn-mount: $CAIRN_SERVER:/$CAIRN_VOLUME is on $CAIRN_MOUNT_POINT"
