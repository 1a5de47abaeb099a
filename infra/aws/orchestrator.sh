#!/bin/bash
# Starts the orchestrator: a Prefect server and a worker, as containers of the control image. User data of
# infra/aws/millrace.yaml, copied there by `make docs`, and a command for a machine elsewhere.
# A second call replaces the containers. No `set -x`: the console's log would show the passwords.
#
#   IMAGE, WORKSPACE, CONFIG    the control image; addresses of the workspace and of your settings
#   AWS_DEFAULT_REGION          the stack's region
#   PASSWORD_SECRET             secret of Secrets Manager with the server's password
#   VOLUME, STATE               EBS volume of Prefect's state, and its folder; else a volume of Docker
#   DATABASE, DATABASE_SECRET   postgresql://USER@HOST:PORT/NAME, and the secret with its password; else
#                               SQLite, in Prefect's state
#   EACH_BOOT                   file that cloud-init runs at each boot, as user data runs once, and that
#                               runs again a minute after a failure
set -euo pipefail
: "${IMAGE:?}" "${WORKSPACE:?}" "${CONFIG:?}" "${PASSWORD_SECRET:?}" "${AWS_DEFAULT_REGION:?}"

[ -z "${EACH_BOOT:-}" ] || [ "$0" -ef "$EACH_BOOT" ] || install -D -m 700 "$0" "$EACH_BOOT"
trap '[ $? -eq 0 ] || [ -z "${EACH_BOOT:-}" ] || systemd-run --on-active=60 "$EACH_BOOT"' EXIT
command -v docker > /dev/null || dnf install -y docker
systemctl enable --now docker

disk() { # NVMe names change from boot to boot
  lsblk --nodeps --noheadings --paths --output NAME,SERIAL |
    awk -v serial="${VOLUME/-/}" '$2 == serial { print $1 }'
}

kept=type=volume,src=prefect
if [ -n "${VOLUME:-}" ]; then
  machine=$(cloud-init query instance_id)
  for _ in {1..180}; do # 15 minutes: the machine before this one gives the volume up when it ends
    [ -z "$(disk)" ] || break
    aws ec2 attach-volume --volume-id "$VOLUME" --instance-id "$machine" --device /dev/sdf || true
    sleep 5
  done
  device=$(disk)
  [ -n "$device" ] || { echo "$VOLUME was not attached" >&2; exit 1; }
  signatures=$(wipefs --no-act --noheadings "$device") # an error if the disk can't be read
  [ -n "$signatures" ] || mkfs.ext4 -q "$device"
  mkdir -p "$STATE"
  mountpoint --quiet "$STATE" || mount "$device" "$STATE"
  mkdir -p "$STATE/prefect"
  chown 10001:10001 "$STATE/prefect" # the image's user
  kept=type=bind,src=$STATE/prefect # Docker starts no server while this folder is not mounted
fi

secret() { # a text, or JSON with the key password, as RDS keeps it
  aws secretsmanager get-secret-value --secret-id "$1" --query SecretString --output text | python3 -c '
import json, sys
text = sys.stdin.read().strip()
print(json.loads(text)["password"] if text.startswith("{") else text)'
}

password=$(secret "$PASSWORD_SECRET")
[[ $password == *:* ]] || password=millrace:$password
if [ -n "${DATABASE:-}" ]; then
  [[ $DATABASE =~ ^postgresql://([^@:/]+)@([^@:/]+):([0-9]+)/([^/]+)$ ]] ||
    { echo "DATABASE is not postgresql://USER@HOST:PORT/NAME" >&2; exit 1; }
  database=("${BASH_REMATCH[@]}")
  database_password=$(secret "$DATABASE_SECRET")
fi

of_server() {
  cat <<END
PREFECT_SERVER_API_AUTH_STRING=$password
PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS=http://127.0.0.1:4200,http://localhost:4200
PREFECT_SERVER_ANALYTICS_ENABLED=false
PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE=prefect.server.concurrency.lease_storage.filesystem
PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED=events,flow_runs
PREFECT_SERVER_UI_V2_ENABLED=false
END
  [ -z "${DATABASE:-}" ] || cat <<END
PREFECT_SERVER_DATABASE_DRIVER=postgresql+asyncpg
PREFECT_SERVER_DATABASE_USER=${database[1]}
PREFECT_SERVER_DATABASE_HOST=${database[2]}
PREFECT_SERVER_DATABASE_PORT=${database[3]}
PREFECT_SERVER_DATABASE_NAME=${database[4]}
PREFECT_SERVER_DATABASE_PASSWORD=$database_password
END
}

of_worker() {
  cat <<END
AWS_DEFAULT_REGION=$AWS_DEFAULT_REGION
MILLRACE_WORKSPACE=$WORKSPACE
MILLRACE_CONFIG=$CONFIG
PREFECT_API_URL=http://127.0.0.1:4200/api
PREFECT_API_AUTH_STRING=$password
END
}

aws ecr get-login-password | docker login --username AWS --password-stdin "${IMAGE%%/*}"
docker pull --quiet "$IMAGE"
for name in worker server; do
  docker stop -t 120 "$name" > /dev/null 2>&1 || true # a training of the worker ends after a checkpoint
  docker rm --force "$name" > /dev/null 2>&1 || true
done
start=(docker run --detach --init --restart unless-stopped --network host --log-driver local)
"${start[@]}" --name server --mount "$kept,dst=/home/millrace/.prefect" --env-file <(of_server) \
  "$IMAGE" prefect server start
"${start[@]}" --name worker --stop-timeout 120 --env-file <(of_worker) "$IMAGE"
