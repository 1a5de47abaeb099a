# The worker on Trainium 1 (`accelerator: xla`): torch-neuronx 2.9, the last one that PyTorch/XLA trains with.
# SDK 2.30.0 is the last whose training container was published. Its runtime library (2.32) works with driver
# aws-neuronx-dkms 2.27 and 2.28 only; the AMI, infra/aws/ami.sh, has 2.28. They change together or not at all.
FROM public.ecr.aws/neuron/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04

LABEL org.opencontainers.image.title="millrace worker for Neuron" \
      org.opencontainers.image.description="The worker plane of Millrace on AWS Trainium, Neuron SDK 2.30.0" \
      org.opencontainers.image.licenses="Apache-2.0"

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/millrace \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    USER=millrace

# The ids are those of WorkerUser in infra/aws/millrace.yaml; the AMI gives this group the Neuron and EFA devices.
RUN groupadd --gid 10001 millrace && useradd --uid 10001 --gid 10001 --create-home millrace

WORKDIR /opt/millrace
COPY pyproject.toml constraints.txt infra/images/requirements.py ./
# The compiler, the runtime and torch stay as AWS tested them, with every version that they need. If that leaves no
# version of something that the project needs, pip says so and the build ends, rather than change it under the compiler.
RUN python requirements.py worker --own torch-neuronx neuronx-cc libneuronxla torch-xla torch \
 && python -m pip install --requirement requirements.txt --constraint pins.txt

COPY configs configs
COPY infra infra
COPY tasks tasks

USER millrace
# Clear the base image's entry point: AWS Batch gives the whole command, with `python` first.
ENTRYPOINT []
CMD ["python", "-m", "tasks.worker.launch", "--help"]
