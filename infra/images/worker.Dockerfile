# The worker on processors (`accelerator: cpu`), and with two arguments on NVIDIA GPUs:
#   docker build -f infra/images/worker.Dockerfile -t worker .
#   docker build -f infra/images/worker.Dockerfile -t worker-cuda \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 .
# A BASE that brings its own build of torch keeps it with --build-arg OWN=torch.
ARG BASE=python:3.12.12-slim-bookworm
FROM ${BASE}
# In addition to PyPI: its 2.9.1+cpu fits the pin torch==2.9.1, is preferred, and brings no 3 GB of CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG OWN=""
# The clients of the search services that releases are published to, as in --build-arg TARGETS="pgvector qdrant"; and
# `export`, which makes the exports of release.exports.
ARG TARGETS=""

LABEL org.opencontainers.image.title="millrace worker" \
      org.opencontainers.image.description="The worker plane of Millrace on processors or NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/millrace \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# The ids are those of WorkerUser in infra/aws/millrace.yaml.
RUN groupadd --gid 10001 millrace && useradd --uid 10001 --gid 10001 --create-home millrace

WORKDIR /opt/millrace
# Packages change seldom: a layer of their own makes a push of new code small.
COPY pyproject.toml constraints.txt infra/images/requirements.py ./
RUN python requirements.py worker ${TARGETS} --own ${OWN} \
 && python -m pip install --extra-index-url "${TORCH_INDEX}" --requirement requirements.txt --constraint pins.txt

COPY configs configs
COPY infra infra
COPY tasks tasks

USER millrace
# No entry point: AWS Batch gives the whole command, `python -m tasks.worker.launch STAGE --spec WORKSPACE#KEY`.
CMD ["python", "-m", "tasks.worker.launch", "--help"]
