# The worker on Trainium 2 and 3 (`accelerator: neuron`): TorchNeuron of Neuron SDK 2.33.0, whose packages come from
# AWS's indexes, as its documents describe it for Ubuntu 24.04. AWS's own image of that SDK has Python 3.14 alone, and
# the project ends before 3.13. Runtime and driver change together: the AMI needs driver 2.31 (docs/aws.md).
ARG BASE=ubuntu:24.04
FROM ${BASE}
# In addition to PyPI: the packages of Neuron, and a torch without 3 GB of CUDA.
ARG NEURON_INDEX=https://pip.repos.neuron.amazonaws.com
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

LABEL org.opencontainers.image.title="millrace worker for TorchNeuron" \
      org.opencontainers.image.description="The worker plane of Millrace on AWS Trainium 2 and 3, Neuron SDK 2.33.0" \
      org.opencontainers.image.licenses="Apache-2.0"

# USER: Neuron's compiler asks who it is. The cache of graphs is a folder of each attempt, which the worker sets.
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/millrace \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/python/bin:/opt/aws/neuron/bin:/opt/amazon/efa/bin:/usr/local/bin:/usr/bin:/bin \
    USER=millrace

# The ids are those of WorkerUser in infra/aws/millrace.yaml; the AMI gives this group the Neuron and EFA devices.
RUN groupadd --gid 10001 millrace && useradd --uid 10001 --gid 10001 --create-home millrace

# Runtime, collectives and tools are of one SDK; libfabric is the one whose driver infra/aws/ami.sh installs.
ARG EFA_INSTALLER=1.41.0
ARG EFA_SHA256=3506354cdfbe31ff552fe75f5d0d9bb7efd29cf79bd99457347d29c751c38f9f
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates curl gnupg python3.12 python3.12-venv g++ \
 && curl --fail --silent --show-error https://apt.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB \
      | gpg --dearmor --output /usr/share/keyrings/neuron.gpg \
 && echo "deb [signed-by=/usr/share/keyrings/neuron.gpg] https://apt.repos.neuron.amazonaws.com noble main" \
      > /etc/apt/sources.list.d/neuron.list \
 && apt-get update \
 && apt-get install --yes --no-install-recommends "aws-neuronx-runtime-lib=2.35.30*" \
      "aws-neuronx-collectives=2.35.43*" "aws-neuronx-tools=2.33.38*" \
 && cd /tmp \
 && curl --fail --silent --show-error --remote-name \
      "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER}.tar.gz" \
 && echo "${EFA_SHA256}  aws-efa-installer-${EFA_INSTALLER}.tar.gz" | sha256sum --check \
 && tar -xf "aws-efa-installer-${EFA_INSTALLER}.tar.gz" \
 && (cd aws-efa-installer && ./efa_installer.sh --yes --skip-kmod --skip-limit-conf --no-verify) \
 && rm -rf /tmp/aws-efa-installer* /var/lib/apt/lists/*

WORKDIR /opt/millrace
COPY pyproject.toml constraints.txt infra/images/requirements.py ./
# TorchNeuron first, of the family that its torch needs; then the project around it. If that leaves no version of
# something that the project needs, pip says so and the build ends, rather than change it under the compiler.
RUN python3.12 -m venv /opt/python \
 && printf 'torch-neuronx==2.14.3.0.*\nneuronx-cc==2.28.7631.*\n' > pins.txt \
 && python -m pip install --extra-index-url "${NEURON_INDEX}" --extra-index-url "${TORCH_INDEX}" \
      torch-neuronx neuronx-cc nki --constraint pins.txt \
 && python requirements.py worker --own torch-neuronx neuronx-cc nki torch \
 && python -m pip install --extra-index-url "${TORCH_INDEX}" --requirement requirements.txt --constraint pins.txt

COPY configs configs
COPY infra infra
COPY tasks tasks

USER millrace
# No entry point: AWS Batch gives the whole command, `python -m tasks.worker.launch STAGE --spec WORKSPACE#KEY`.
CMD ["python", "-m", "tasks.worker.launch", "--help"]
