#!/bin/sh
# make check-neuron: the images and Neuron's compiler, without a NeuronCore. Needs x86-64, Docker, the internet, and
# 60 GB of disk. It ends at the first step that fails, and says which. Nothing of it has run where this was written.
set -eu

cd "$(dirname "$0")/../.."
images="control worker worker-neuron worker-torchneuron local"
graphs=${GRAPHS:-build/neuron-graphs}
levels=${LEVELS:-"1 2"}

step() { echo "== $*"; }

# As on AWS Batch: the user of infra/aws/millrace.yaml; stricter: no network, and nothing to write to but /tmp.
contained() { docker run --rm --network none --read-only --user 10001:10001 --tmpfs /tmp:rw,exec,mode=1777 "$@"; }

[ "$(uname -m)" = x86_64 ] || { echo "the Neuron image is for x86-64; this is $(uname -m)" >&2; exit 1; }
docker info >/dev/null

for image in $images; do
  step "build $image"
  docker build --file "infra/images/$image.Dockerfile" --tag "millrace-$image:check" .
done

for image in $images; do
  step "packages of $image"
  contained "millrace-$image:check" python -m pip check
  step "imports of $image, as user 10001 with a read-only root"
  contained --env PJRT_DEVICE=CPU --volume "$PWD/tests/neuron/imports.py:/tmp/imports.py:ro" \
    "millrace-$image:check" python /tmp/imports.py
done

for image in worker-neuron worker-torchneuron; do
  step "versions of the Neuron SDK in $image"
  contained "millrace-$image:check" sh -c 'neuronx-cc --version; python -m pip list | grep -i neuron'
done

step "graphs of warmup and health into $graphs"
rm -rf "$graphs"
.venv/bin/python -m tests.neuron.graphs "$graphs"

for level in $levels; do
  step "neuronx-cc, level $level"
  contained --volume "$PWD/$graphs:/graphs:ro" --env LEVEL="$level" millrace-worker-neuron:check sh -eu -c '
    cd /tmp
    for graph in /graphs/*.hlo_module.pb; do
      echo "-O$LEVEL $(basename "$graph")"
      neuronx-cc compile "$graph" --framework=XLA $(cat "/graphs/arguments-O$LEVEL") --output=/tmp/graph.neff
      test -s /tmp/graph.neff
      rm -rf /tmp/*
    done'
done

step "all of it passed; write it down in docs/accelerators.md, with the versions above"
