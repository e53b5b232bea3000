#!/bin/bash
# Runs in the VM: what people do on a mounted volume, with the kernel's own client.
# SERVER and PORT name the server; /suite, /tools and /repository.git come from the host; REQUESTS is
# where things are asked of it. Arguments: port-111 (the server has it), lose-disks (it can be asked for).
set -uo pipefail

readonly FILES_COUNT=5000
readonly FSX_OPERATIONS=4000
readonly ORDINARY="vers=3,proto=tcp,nolock,port=$PORT,mountport=$PORT"
readonly REQUEST_SECONDS_MAX=120
failed=0

step() {
    local name=$1 started=$SECONDS
    shift
    if ("$@") >/tmp/step.log 2>&1; then
        echo "ok     $name ($((SECONDS - started)) s)"
    else
        echo "FAILED $name ($((SECONDS - started)) s)"
        tail -n 25 /tmp/step.log | sed 's/^/       /'
        failed=1
    fi
}

# Asks the host for something and waits until it is done.
request() {
    local deadline=$((SECONDS + REQUEST_SECONDS_MAX))
    touch "$REQUESTS/$1"
    until [[ -e $REQUESTS/$1.done ]]; do
        ((SECONDS < deadline)) || return 1
        sleep 0.1
    done
}

tar_in_and_out() {
    set -e
    local lose_disks=$1
    # Real files with their real modes, owners, times and links.
    (find /usr /etc -xdev \( -type f -o -type l \) -size -2000k | sort | head -n $FILES_COUNT) >/tmp/names || true
    tar --create --file /tmp/in.tar --files-from /tmp/names
    mkdir /mnt/tree
    tar --extract --file /tmp/in.tar --directory /mnt/tree --same-owner --preserve-permissions
    # The client still holds what it has not committed, and sends it again to the server that comes back.
    [[ -z $lose_disks ]] || request lose-disks
    drop_caches
    tar --compare --file /tmp/in.tar --directory /mnt/tree
    tar --create --directory /mnt/tree . | tar --extract --directory /tmp --one-top-level=out
    diff --recursive --no-dereference /mnt/tree /tmp/out
    test "$(find /mnt/tree ! -type d | wc -l)" -eq "$(wc -l </tmp/names)"
    rm -r /mnt/tree /tmp/out
    test ! -e /mnt/tree
}

drop_caches() {
    sync
    echo 3 >/proc/sys/vm/drop_caches
}

clone() {
    set -e
    git config --global --add safe.directory '*'
    git clone --quiet --no-hardlinks /repository.git /mnt/clone
    drop_caches
    git -C /mnt/clone fsck --full --strict
    test -z "$(git -C /mnt/clone status --porcelain)"
    git -C /mnt/clone gc --quiet
    git -C /mnt/clone fsck --full --strict
}

compile() {
    set -e
    cp -r /suite/project /mnt/project
    make -C /mnt/project check
    touch /mnt/project/words.c
    make -C /mnt/project check
}

fsx_runs() {
    set -e
    mkdir /mnt/fsx
    for seed in 1 2; do
        /tools/fsx -q -N $FSX_OPERATIONS -S $seed -P /tmp /mnt/fsx/file$seed
    done
}

open_files() {
    python3 /suite/open_files.py /mnt /mnt2
}

many_connections() {
    set -e
    umount /mnt2
    mount -t nfs -o "$ORDINARY,nconnect=8" "$SERVER:/main" /mnt2
    fio --name=verify --directory=/mnt2 --size=16m --bs=64k --rw=randwrite --verify=crc32c --ioengine=libaio \
        --iodepth=16 --direct=1 --numjobs=4 --minimal
    rm /mnt2/verify.*
}

the_root() {
    set -e
    mkdir -p /mnt3
    mount -t nfs -o "$ORDINARY" "$SERVER:/" /mnt3
    test "$(ls /mnt3)" = main
    test -d /mnt3/main
    umount /mnt3
}

# Mounts with these options only, and uses the mount.
mounts_with() {
    set -e
    mkdir -p /mnt4
    timeout 60 mount -t nfs ${1:+-o "$1"} "$SERVER:/main" /mnt4
    grep ' /mnt4 ' /proc/mounts
    echo content >/mnt4/probe
    test "$(cat /mnt4/probe)" = content
    rm /mnt4/probe
    umount /mnt4
}

# Without nolock the client asks the server for each lock.
locks_are_refused() {
    set -e
    mount -t nfs "$SERVER:/main" /mnt4
    grep ' /mnt4 .*local_lock=none' /proc/mounts
    python3 /suite/locks.py /mnt4
    umount /mnt4
}

has() {
    [[ " $arguments " == *" $1 "* ]]
}

arguments=$*
mkdir -p /mnt2
mount -t nfs -o "$ORDINARY" "$SERVER:/main" /mnt || exit 1
mount -t nfs -o "$ORDINARY,noac" "$SERVER:/main" /mnt2 || exit 1
step "the root shows the volumes" the_root
if has port-111; then
    step "mount with port= and mountport= alone" mounts_with "vers=3,port=$PORT,mountport=$PORT,nolock"
    step "mount without ports" mounts_with "vers=3,nolock"
    step "mount without ports or version" mounts_with nolock
    # rpc.statd, which mount.nfs then wants to have, is a service that an init system would start.
    guest-service nfs
    step "mount without any option" mounts_with ""
    step "locks without nolock" locks_are_refused
fi
step "rename and unlink of open files" open_files
step "fsx" fsx_runs
step "compile" compile
step "nconnect=8, fio verify" many_connections
step "git clone and fsck" clone
if has lose-disks; then
    step "tar of $FILES_COUNT files in, kill -9, two disks lost, and out" tar_in_and_out lose-disks
else
    step "tar of $FILES_COUNT files in and out" tar_in_and_out ""
fi
umount /mnt2
umount /mnt || failed=1
exit $failed
