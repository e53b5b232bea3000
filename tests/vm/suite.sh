#!/bin/bash
# Runs in the VM: what people do on a mounted volume, with the kernel's own client.
# SERVER and PORT name the server; /suite, /tools and /repository.git come from the host.
set -uo pipefail

readonly FILES_COUNT=5000
readonly FSX_OPERATIONS=4000
readonly ORDINARY="vers=3,proto=tcp,nolock,port=$PORT,mountport=$PORT"
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

tar_in_and_out() {
    set -e
    # Real files with their real modes, owners, times and links.
    (find /usr /etc -xdev \( -type f -o -type l \) -size -2000k | sort | head -n $FILES_COUNT) >/tmp/names || true
    tar --create --file /tmp/in.tar --files-from /tmp/names
    mkdir /mnt/tree
    tar --extract --file /tmp/in.tar --directory /mnt/tree --same-owner --preserve-permissions
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

mkdir -p /mnt2
mount -t nfs -o "$ORDINARY" "$SERVER:/main" /mnt || exit 1
mount -t nfs -o "$ORDINARY,noac" "$SERVER:/main" /mnt2 || exit 1
step "the root shows the volumes" the_root
step "rename and unlink of open files" open_files
step "fsx" fsx_runs
step "compile" compile
step "nconnect=8, fio verify" many_connections
step "git clone and fsck" clone
step "tar of $FILES_COUNT files in and out" tar_in_and_out
umount /mnt2
umount /mnt || failed=1
exit $failed
