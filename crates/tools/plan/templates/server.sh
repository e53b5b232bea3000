
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
