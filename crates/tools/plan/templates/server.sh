
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
# The admin API has no encryption of its own: it stays on this machine.
listen_admin = "127.0.0.1:8049"
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

# Lets the clients mount, and nobody else.
export_volume() {
    local network
    cairn volume list --json | grep -q "\"name\": *\"$CAIRN_VOLUME\"" ||
        cairn volume create "$CAIRN_VOLUME" ${CAIRN_PROTECTION:+--protection "$CAIRN_PROTECTION"}
    for network in ${CAIRN_CLIENTS//,/ }; do
        cairn export set "$CAIRN_VOLUME" --client "$network" --rw --squash root
    done
    # The top folder belongs to root, and the administrator has to make folders for others in it.
    [[ -z $CAIRN_LOGIN ]] || cairn export set "$CAIRN_VOLUME" --client "$CAIRN_LOGIN" --rw --squash none
}

# Asks the server every minute whether it serves (health.sh), from now on and after each reboot.
watch_health() {
    cat >/etc/systemd/system/cairn-health.service <<END
[Unit]
Description=Health of the Cairn server, for CloudWatch and the auto scaling group

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/cairn-health
TimeoutStartSec=50
RuntimeDirectory=cairn-health
RuntimeDirectoryPreserve=yes
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
END
    cat >/etc/systemd/system/cairn-health.timer <<END
[Unit]
Description=Health of the Cairn server, every minute

[Timer]
OnActiveSec=1min
OnUnitActiveSec=1min
AccuracySec=5s

[Install]
WantedBy=timers.target
END
    systemctl daemon-reload
    systemctl enable cairn-health.timer
    systemctl restart cairn-health.timer
}

use_https
need_packages ca-certificates curl awscli xfsprogs
install_cairn
mount_disks
configure
systemctl daemon-reload
systemctl enable cairn.service
systemctl restart cairn.service
until_true "the server" cairn status
export_volume
cairn status
# Without a group nobody replaces the machine, and without its role nobody takes the figures.
[[ -z $CAIRN_GROUP ]] || watch_health
say "$CAIRN_VOLUME is exported to $CAIRN_CLIENTS, and to root of ${CAIRN_LOGIN:-this machine}"
