#!/bin/bash
# Runs in a VM whose power will be cut: mounts the drives that the host gave it, and is a server on them.
#
# power.sh FILE-SYSTEM [INDEX...] -- FLAG...: /dev/vdb is mounted at /disks/0, and so on; a drive without a file system
# gets one. INDEX: drives that are not there this time. FLAG: of `cairn serve`. The program is in /program, and what is
# to be told outside is left in /told. CAIRN_FORGETS: syncs that are left out, as forgetful.c says.
set -eu
file_system=$1
shift
away=" "
while [[ $1 != -- ]]; do
    away+="$1 "
    shift
done
shift

# Nothing is written because time passes: what counts on that loses more here than elsewhere.
echo 720000 >/proc/sys/vm/dirty_expire_centisecs
echo 0 >/proc/sys/vm/dirty_writeback_centisecs
options=noatime
[[ $file_system != ext4 ]] || options+=,commit=3600
index=0
for device in /dev/vd[b-z]; do
    folder=/disks/$index
    mkdir -p "$folder"
    if [[ $away != *" $index "* ]]; then
        blkid -p "$device" >/dev/null || "mkfs.$file_system" -q "$device"
        mount -t "$file_system" -o "$options" "$device" "$folder"
    fi
    index=$((index + 1))
done
[[ ! -e /proc/sys/fs/xfs/xfssyncd_centisecs ]] || echo 720000 >/proc/sys/fs/xfs/xfssyncd_centisecs
touch /told/mounted
# Not from the host's folder: it would be asked for each page.
cp /program/cairn /run/cairn-program
export CAIRN_RUNTIME_DIR=/run
[[ -z ${CAIRN_FORGETS:-} ]] || export LD_PRELOAD=/program/forgetful.so
# The folder is in the mount: where a drive is away there is none, and none is made but at the first start.
[[ $away != " " ]] || export CAIRN_CREATE=true
exec /run/cairn-program serve "$@" >>/told/cairn.log 2>&1
