#!/bin/bash
# First boot of a machine that serves Cairn. It may run again: what is done is left as it is.
#
# Settings are in /etc/cairn/deploy.env; what happens is in /var/log/cloud-init-output.log.
set -Eeuo pipefail
# shellcheck source=/dev/null
. "${CAIRN_DEPLOY_ENV:-/etc/cairn/deploy.env}"
export DEBIAN_FRONTEND=noninteractive HOME=/root AWS_DEFAULT_REGION=$CAIRN_REGION

readonly DISKS=/srv/cairn
readonly BY_ID=${CAIRN_BY_ID:-/dev/disk/by-id}
readonly METADATA=${CAIRN_METADATA:-http://169.254.169.254}
readonly WAIT_SECONDS_MAX=${CAIRN_WAIT_SECONDS_MAX:-900}
readonly RETRY_SECONDS=${CAIRN_RETRY_SECONDS:-5}
readonly FETCH_COUNT_MAX=5
readonly FETCH_SECONDS_MAX=600

say() {
    echo "cairn-boot: $*"
}

fail() {
    say "$*" >&2
    exit 1
}

# metadata PATH: what the instance knows of itself; only with a token (IMDSv2).
metadata() {
    local token
    token=$(curl -sSf -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 300" "$METADATA/latest/api/token")
    curl -sSf -H "X-aws-ec2-metadata-token: $token" "$METADATA/latest/meta-data/$1"
}

# Tells the stack and the auto scaling group how it went. Where this cannot be told, their time runs out.
finish() {
    local status=$? word=SUCCESS result=CONTINUE
    [[ $status -eq 0 ]] || word=FAILURE result=ABANDON
    say "ends with $word"
    if [[ -n $CAIRN_STACK ]]; then
        # A node of a cluster has the name of its own resource in a tag.
        [[ $CAIRN_SIGNAL != tag ]] || CAIRN_SIGNAL=$(metadata tags/instance/cairn-signal)
        # Nobody waits for it outside of a stack's creation or update.
        aws cloudformation signal-resource --stack-name "$CAIRN_STACK" --logical-resource-id "$CAIRN_SIGNAL" \
            --unique-id "$(metadata instance-id)" --status "$word" || say "no stack waits for this signal"
    fi
    if [[ -n $CAIRN_GROUP ]]; then
        # Abandoned, it is replaced.
        aws autoscaling complete-lifecycle-action --auto-scaling-group-name "$CAIRN_GROUP" \
            --lifecycle-hook-name "$CAIRN_HOOK" --instance-id "$(metadata instance-id)" \
            --lifecycle-action-result "$result" || say "no auto scaling group waits for this boot"
    fi
}
trap finish EXIT

# until_true WHAT COMMAND...: tries until it succeeds.
until_true() {
    local what=$1 until=$((SECONDS + WAIT_SECONDS_MAX))
    shift
    until "$@"; do
        [[ $SECONDS -lt $until ]] || fail "gave up after $WAIT_SECONDS_MAX s: $what"
        sleep "$RETRY_SECONDS"
    done
}

# The security group lets out HTTPS alone.
use_https() {
    find /etc/apt -name "*.list" -o -name "*.sources" | while read -r file; do
        sed -i "s|http://|https://|g" "$file"
    done
}

need_packages() {
    until_true "the lists of packages" apt-get -o DPkg::Lock::Timeout=300 update -qq
    until_true "installing $*" apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@"
}

download() {
    case $CAIRN_PACKAGE_URL in
    s3://*) aws s3 cp --only-show-errors "$CAIRN_PACKAGE_URL" "$1" ;;
    *) curl -sSfL --proto =https --max-time "$FETCH_SECONDS_MAX" "$CAIRN_PACKAGE_URL" -o "$1" ;;
    esac
}

# Installs the package of Cairn, if it has the checksum that was given.
install_cairn() {
    local file try
    file=$(mktemp -d)/cairn.deb
    for ((try = 1; ; try++)); do
        if ! download "$file"; then
            say "$CAIRN_PACKAGE_URL cannot be fetched"
        elif ! echo "$CAIRN_PACKAGE_SHA256  $file" | sha256sum --check --status; then
            say "$CAIRN_PACKAGE_URL is not what its SHA-256 says"
        else
            break
        fi
        [[ $try -lt $FETCH_COUNT_MAX ]] || fail "gave up after $try tries: $CAIRN_PACKAGE_URL"
        sleep $((try * RETRY_SECONDS))
    done
    # apt-get's own user reads it.
    chmod 755 "$(dirname "$file")"
    need_packages "$file"
    rm -rf "$(dirname "$file")"
    say "$(cairn --version) is installed"
}

# attach NUMBER VOLUME: that of an earlier instance comes free when that one is gone.
attach() {
    local number=$1 volume=$2 names=(/dev/sd{f..p} /dev/xvdb{a..z}) me at
    me=$(metadata instance-id)
    at=$(aws ec2 describe-volumes --volume-ids "$volume" --output text --query "Volumes[0].Attachments[0].InstanceId")
    [[ $at != "$me" ]] || return 0
    aws ec2 attach-volume --volume-id "$volume" --instance-id "$me" --device "${names[number - 1]}" >/dev/null
}

# Devices by what their links begin with; one has several, and partitions have some too.
devices_named() {
    find "$BY_ID" -name "$1*" ! -name "*-part*" -exec realpath {} + 2>/dev/null | sort -u
}

root_device() {
    lsblk --noheadings --nodeps --paths --output PKNAME "$(findmnt --noheadings --output SOURCE --target /)"
}

# Prints the devices of the data disks, one a line.
data_devices() {
    local number=0 volume link
    case $CAIRN_DISKS in
    volumes)
        for volume in ${CAIRN_VOLUMES//,/ }; do
            number=$((number + 1))
            until_true "attaching $volume" attach "$number" "$volume" >&2
            link=$BY_ID/nvme-Amazon_Elastic_Block_Store_${volume/-/}
            until_true "$link" test -e "$link" >&2
            realpath "$link"
        done
        ;;
    own-volumes) devices_named nvme-Amazon_Elastic_Block_Store_vol | grep -vxF "$(root_device)" ;;
    instance-store) devices_named nvme-Amazon_EC2_NVMe_Instance_Storage_ ;;
    devices)
        for link in ${CAIRN_VOLUMES//,/ }; do
            until_true "$link" test -b "$link" >&2
            realpath "$link"
        done
        ;;
    *) fail "CAIRN_DISKS is not known: $CAIRN_DISKS" ;;
    esac
}

# mount_disk NUMBER DEVICE: as XFS, made only where there is nothing at all.
mount_disk() {
    local folder=$DISKS/disk$1 device=$2 type uuid
    type=$(blkid -p -s TYPE -o value "$device" || true)
    if [[ -z $type ]]; then
        [[ -z $(blkid -p "$device" || true) ]] || fail "$device has partitions: it is no data disk"
        say "making a file system on $device"
        mkfs.xfs -q "$device"
    elif [[ $type != xfs ]]; then
        fail "$device holds $type, not XFS: it is left alone"
    fi
    uuid=$(blkid -p -s UUID -o value "$device")
    mkdir -p "$folder"
    sed -i "\\| $folder xfs |d" /etc/fstab
    echo "UUID=$uuid $folder xfs noatime,nofail,x-systemd.device-timeout=120 0 0" >>/etc/fstab
    mountpoint -q "$folder" || mount "$folder"
    # A folder inside: where a disk is not mounted, there is none, and Cairn cannot mistake it.
    install -d -o cairn -g cairn -m 700 "$folder/data"
}

# Mounts all disks and lists their folders in FOLDERS. Without all of them nothing is served: a pool that is made,
# or repaired, without a late disk would lose what is on it.
FOLDERS=()
mount_disks() {
    local device devices
    devices=$(data_devices)
    while read -r device; do
        [[ -n $device ]] || continue
        mount_disk $((${#FOLDERS[@]} + 1)) "$device"
        FOLDERS+=("$DISKS/disk$((${#FOLDERS[@]} + 1))")
    done <<<"$devices"
    [[ ${#FOLDERS[@]} -eq $CAIRN_DISK_COUNT ]] ||
        fail "there are ${#FOLDERS[@]} data disks, not $CAIRN_DISK_COUNT"
    say "data disks: ${FOLDERS[*]}"
}

# Settings of other protocols than NFS. S3 is HTTPS, with a certificate of this machine until yours is in its place.
listeners() {
    local tls=/etc/cairn/s3
    case ,$CAIRN_PROTOCOLS, in *,s3,*)
        [[ -e $tls.key ]] || openssl req -x509 -nodes -newkey rsa -days 3650 -subj "/CN=$CAIRN_NAME" -addext \
            "subjectAltName=$(hostname -I | xargs printf "IP:%s,")DNS:$HOSTNAME" -keyout "$tls.key" -out "$tls.crt"
        chown cairn "$tls.key"
        printf '%s = "%s"\n' listen_s3 0.0.0.0:9000 s3_certificate "$tls.crt" s3_key "$tls.key"
        ;;
    esac
    case ,$CAIRN_PROTOCOLS, in *,iscsi,*) echo 'listen_iscsi = "0.0.0.0:3260"' ;; esac
}

# The settings of the server, and what systemd has to know of the folders.
configure() {
    local folder list=()
    for folder in "${FOLDERS[@]}"; do
        list+=("\"$folder/data\"")
    done
    install -d /etc/cairn /etc/systemd/system/cairn.service.d
    cat >/etc/cairn/cairn.toml <<END
# Written at first boot.
data = [$(IFS=, && echo "${list[*]}")]
listen_nfs = "0.0.0.0:$CAIRN_PORT"
# The admin API stays on this machine.
listen_admin = "127.0.0.1:8049"
$(listeners)
END
    chmod 644 /etc/cairn/cairn.toml
    cat >/etc/systemd/system/cairn.service.d/disks.conf <<END
[Unit]
RequiresMountsFor=${FOLDERS[*]}

[Service]
ReadWritePaths=${FOLDERS[*]}
END
    cairn config check /etc/cairn/cairn.toml
}

# Lets the clients mount.
export_volume() {
    local network
    cairn volume list --json | grep -q "\"name\": *\"$CAIRN_VOLUME\"" ||
        cairn volume create "$CAIRN_VOLUME" ${CAIRN_PROTECTION:+--protection "$CAIRN_PROTECTION"}
    for network in ${CAIRN_CLIENTS//,/ }; do
        cairn export set "$CAIRN_VOLUME" --client "$network" --rw --squash root
    done
    # The top folder is root's: the administrator makes folders for others in it.
    [[ -z $CAIRN_LOGIN ]] || cairn export set "$CAIRN_VOLUME" --client "$CAIRN_LOGIN" --rw --squash none
}
