# Both planes in one image, for the whole stack on one machine: infra/compose.yaml builds it and runs it.
FROM python:3.12.12-slim-bookworm
# In addition to PyPI: torch for processors alone, without 3 GB of CUDA; another index brings another build.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

LABEL org.opencontainers.image.title="millrace local" \
      org.opencontainers.image.description="Millrace whole, with its stages as local processes" \
      org.opencontainers.image.licenses="Apache-2.0"

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    MILLRACE_HOME=/opt/millrace \
    DO_NOT_TRACK=1

# A volume takes its owner from the folder that it covers.
RUN groupadd --gid 10001 millrace && useradd --uid 10001 --gid 10001 --create-home millrace \
 && install --directory --owner millrace --group millrace /var/lib/millrace/workspace /var/lib/millrace/prefect

WORKDIR /opt/millrace
COPY pyproject.toml constraints.txt infra/images/requirements.py ./
RUN python requirements.py worker export online lancedb opensearch pgvector qdrant \
 && python -m pip install --extra-index-url "${TORCH_INDEX}" --requirement requirements.txt --constraint pins.txt

COPY README.md LICENSE prefect.yaml ./
COPY configs configs
COPY flows flows
COPY infra infra
COPY tasks tasks
RUN python -m pip install --no-deps --editable .

USER millrace
CMD ["millrace", "--help"]
