
readonly CLUSTER=/var/lib/cairn/cluster
# The first node leaves tickets there for the others.
readonly TICKETS=/cairn/$CAIRN_NAME/ticket

mapfile -td , NODES < <(printf %s "$CAIRN_NODES")

# Finds this node among all, by its internal address.
own_place() {
    local at
    for at in "${!NODES[@]}"; do
        if ip -oneline -4 address | grep -qF " ${NODES[at]}/"; then
            OWN=${NODES[at]} NUMBER=$((at + 1))
            return
        fi
    done
    return 1
}

as_cairn() {
    setpriv --reuid cairn --regid cairn --clear-groups "$@"
}

ticket() {
    aws ssm get-parameter --with-decryption --name "$TICKETS$NUMBER" --query Parameter.Value --output text
}

# The first node makes the cluster, others join it; once.
take_place() {
    local place=(--node "node$NUMBER" --internal "$OWN:7400" --external "$EXTERNAL" --cluster-dir "$CLUSTER")
    [[ ! -e $CLUSTER/cluster.json ]] || return 0
    install -d -o cairn -g cairn -m 700 /var/lib/cairn
    if [[ $NUMBER -eq 1 ]]; then
        as_cairn cairn cluster init --name "$CAIRN_NAME" "${place[@]}"
        return
    fi
    until_true "a ticket of the first node" ticket >/dev/null 2>&1
    ticket | as_cairn cairn cluster join - "${place[@]}"
    aws ssm delete-parameter --name "$TICKETS$NUMBER"
}

nodes_there() {
    cairn node list --json | grep -o '"name": *"node[0-9]*"'
}

# In a file: it does not appear in ps.
leave_ticket() {
    local file
    file=$(mktemp)
    cairn cluster token --valid 1h >"$file"
    aws ssm put-parameter --type SecureString --overwrite --name "$TICKETS$1" --value "file://$file" >/dev/null
    rm -f "$file"
}

all_joined() {
    [[ $(nodes_there | wc -l) -eq ${#NODES[@]} ]]
}

admit_others() {
    local number
    for ((number = 2; number <= ${#NODES[@]}; number++)); do
        nodes_there | grep -qF "\"node$number\"" || leave_ticket "$number"
    done
    until_true "the other nodes" all_joined
}

# EC2's network hears no ARP: this moves the address of a volume to its owner.
write_hook() {
    local mac interface device
    mac=$(metadata mac)
    interface=$(metadata "network/interfaces/macs/$mac/interface-id")
    device=$(ip -oneline -4 address | awk -v own="$EXTERNAL" '{ split($4, at, "/"); if (at[1] == own) print $2 }')
    cat >/usr/local/sbin/cairn-address <<END
#!/bin/bash
set -euo pipefail
export HOME=/tmp AWS_DEFAULT_REGION=$CAIRN_REGION
device=\${CAIRN_INTERFACE:-$device}
case \$1 in
take)
    aws ec2 assign-private-ip-addresses --network-interface-id $interface --allow-reassignment \\
        --private-ip-addresses "\${3%/*}" >/dev/null
    ip address replace "\$3" dev "\$device"
    ;;
drop) ip address delete "\$3" dev "\$device" 2>/dev/null || true ;;
esac
END
    chmod 755 /usr/local/sbin/cairn-address
    echo 'address_hook = "/usr/local/sbin/cairn-address"' >>/etc/cairn/cairn.toml
    cat >/etc/systemd/system/cairn.service.d/addresses.conf <<END
[Service]
AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW
RestrictAddressFamilies=AF_NETLINK AF_PACKET
END
}

float_address() {
    local address
    address=$(metadata "network/interfaces/macs/$(metadata mac)/local-ipv4s" | sed -n 2p)
    [[ -n $address ]] || fail "this node has no second address on the clients' side"
    cairn volume address set "$CAIRN_VOLUME" "$address/32"
}

use_https
# Cairn runs the members of etcd itself.
need_packages ca-certificates curl awscli xfsprogs etcd-server iproute2
systemctl disable --now etcd.service || say "etcd has no service here"
install_cairn
until_true "the internal address" own_place
EXTERNAL=$(metadata local-ipv4)
mount_disks
configure
write_hook
take_place
systemctl daemon-reload
systemctl enable cairn.service
systemctl restart cairn.service
until_true "the server" cairn status
if [[ $NUMBER -eq 1 ]]; then
    admit_others
    export_volume
    float_address
fi
cairn cluster status
say "node$NUMBER of ${#NODES[@]} serves"
