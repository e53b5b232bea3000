
# Prints which of the nodes' internal addresses is that of this node.
own_address() {
    ip -oneline -4 address | awk '{ sub("/.*", "", $4); print $4 }' | grep -xF -f <(tr ',' '\n' <<<"$CAIRN_NODES")
}

# The database in which the nodes agree: on the first three nodes, over the internal network.
start_etcd() {
    local member name members=() number=0 own
    until_true "the internal address" own_address >/dev/null
    own=$(own_address)
    for member in ${CAIRN_ETCD//,/ }; do
        number=$((number + 1))
        members+=("node$number=http://$member:2380")
        [[ $member != "$own" ]] || name=node$number
    done
    [[ -n ${name:-} ]] || return 0
    need_packages etcd-server
    cat >/etc/default/etcd <<END
ETCD_NAME="$name"
ETCD_DATA_DIR="/var/lib/etcd/cairn"
ETCD_LISTEN_PEER_URLS="http://$own:2380"
ETCD_LISTEN_CLIENT_URLS="http://$own:2379,http://127.0.0.1:2379"
ETCD_INITIAL_ADVERTISE_PEER_URLS="http://$own:2380"
ETCD_ADVERTISE_CLIENT_URLS="http://$own:2379"
ETCD_INITIAL_CLUSTER="$(IFS=, && echo "${members[*]}")"
ETCD_INITIAL_CLUSTER_TOKEN="$CAIRN_NAME"
ETCD_INITIAL_CLUSTER_STATE="new"
END
    systemctl enable etcd.service
    systemctl restart etcd.service
    until_true "etcd" curl -sSf -o /dev/null http://127.0.0.1:2379/health
}

use_https
need_packages ca-certificates curl awscli xfsprogs
install_cairn
# Before anything is formatted: the command comes with the version that has clusters.
cairn cluster --help >/dev/null 2>&1 ||
    fail "$(cairn --version) serves from one node and has no clusters yet: nothing was formatted, this node serves nothing"
mount_disks
start_etcd
fail "this script is older than clusters are: the disks and etcd are ready; make the template again with cairn plan deploy"
