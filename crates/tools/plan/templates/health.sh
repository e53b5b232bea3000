#!/bin/bash
# Asks the server whether it serves, and tells CloudWatch. An instance whose server has not answered for long is reported
# to its auto scaling group, which replaces it: the new one attaches the same volumes.
#
# Runs once a minute. A lost disk is no reason to replace the instance: the next one would have the same disks.
set -Eeuo pipefail
# shellcheck source=/dev/null
. "${CAIRN_DEPLOY_ENV:-/etc/cairn/deploy.env}"
export HOME=/root AWS_DEFAULT_REGION=$CAIRN_REGION

readonly COUNT=${RUNTIME_DIRECTORY:-/run/cairn-health}/failures
readonly METADATA=${CAIRN_METADATA:-http://169.254.169.254}
readonly ADMIN=${CAIRN_ADMIN:-http://127.0.0.1:8049}
readonly ANSWER_SECONDS_MAX=10
# More than a start may take (TimeoutStartSec of the unit), of one try a minute.
readonly FAILURES_MAX=15

say() {
    echo "cairn-health: $*"
}

instance_id() {
    local token
    token=$(curl -sSf -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 300" "$METADATA/latest/api/token")
    curl -sSf -H "X-aws-ec2-metadata-token: $token" "$METADATA/latest/meta-data/instance-id"
}

# metric NAME VALUE: what the alarms of the template look at.
metric() {
    aws cloudwatch put-metric-data --namespace "$CAIRN_METRICS" --metric-name "$1" --value "$2" \
        --dimensions "Server=$CAIRN_NAME" || say "CloudWatch does not take $1"
}

# Prints 1 if something of the pool needs attention, else 0; then how many hundredths of it are used.
pool() {
    timeout "$ANSWER_SECONDS_MAX" cairn status --json | python3 -c '
import json, sys
status = json.load(sys.stdin)
pool = status["pool"]
print(int(status["health"] in ("degraded", "failed")), round(100 - 100 * pool["free_bytes"] / pool["total_bytes"], 1))
'
}

serves() {
    [[ $(curl -sSf --max-time "$ANSWER_SECONDS_MAX" "$ADMIN/healthz") == ok ]]
}

if serves; then
    rm -f "$COUNT"
    metric Serving 1
    figures=$(pool)
    metric Degraded "${figures% *}"
    metric UsedPercent "${figures#* }"
    exit
fi
metric Serving 0
if [[ $(systemctl is-active cairn.service) == inactive ]]; then
    # Somebody works on it.
    say "the server was stopped: the instance is not replaced for that"
    rm -f "$COUNT"
    exit
fi
failures=$(($(cat "$COUNT" 2>/dev/null || echo 0) + 1))
echo "$failures" >"$COUNT"
say "the server does not answer: $failures of $FAILURES_MAX"
[[ $failures -ge $FAILURES_MAX ]] || exit 0
say "the instance is reported as unhealthy, to be replaced"
aws autoscaling set-instance-health --instance-id "$(instance_id)" --health-status Unhealthy
