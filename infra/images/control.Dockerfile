# The control plane: flows, the command `millrace`, a Prefect worker. No torch, and nothing of the worker plane.
FROM python:3.12.12-slim-bookworm

LABEL org.opencontainers.image.title="millrace control" \
      org.opencontainers.image.description="The control plane of Millrace: a Prefect worker and the command millrace" \
      org.opencontainers.image.licenses="Apache-2.0"

# MILLRACE_HOME: the folder in which the worker runs the flows, see prefect.yaml. DO_NOT_TRACK: Prefect's telemetry.
# The origins: a server in this image accepts requests of its own pages only; its password is in its environment.
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    MILLRACE_HOME=/opt/millrace \
    PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS=http://127.0.0.1:4200,http://localhost:4200 \
    DO_NOT_TRACK=1

# The last folder is where a volume with the Prefect server's database goes; a volume takes its owner from there.
RUN groupadd --gid 10001 millrace && useradd --uid 10001 --gid 10001 --create-home millrace \
 && install --directory --owner millrace --group millrace /home/millrace/.prefect

WORKDIR /opt/millrace
COPY pyproject.toml constraints.txt infra/images/requirements.py ./
RUN python requirements.py && python -m pip install --requirement requirements.txt --constraint pins.txt

COPY README.md LICENSE prefect.yaml ./
COPY configs configs
COPY flows flows
COPY infra infra
# All of tasks except tasks/worker, the worker plane.
COPY tasks/*.py tasks/py.typed tasks/
COPY tasks/campaigns tasks/campaigns
COPY tasks/contracts tasks/contracts
COPY tasks/data tasks/data
COPY tasks/doctor tasks/doctor
COPY tasks/erase tasks/erase
COPY tasks/first_hour tasks/first_hour
COPY tasks/foundation tasks/foundation
COPY tasks/judging tasks/judging
COPY tasks/laboratory tasks/laboratory
COPY tasks/monitoring tasks/monitoring
COPY tasks/planning tasks/planning
COPY tasks/preflight tasks/preflight
COPY tasks/prune tasks/prune
COPY tasks/quality tasks/quality
COPY tasks/running tasks/running
COPY tasks/runs tasks/runs
RUN python -m pip install --no-deps --editable .

USER millrace
CMD ["prefect", "worker", "start", "--pool", "millrace", "--type", "process", "--limit", "6"]
