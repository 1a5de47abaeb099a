#!/bin/bash
# Makes the AMI of the accelerator machines, as user data of an instance of the ECS-optimised Amazon Linux 2023 AMI:
# the Neuron driver and the EFA driver at pinned versions, and their devices in the hands of one group. docs/aws.md has
# the commands. The machine stops when all is done; one that keeps running has failed: see its console output.
set -euxo pipefail

NEURON_DRIVER=2.28.0 # with the SDK 2.30.0 worker image: 2.27 or 2.28, nothing newer
EFA_INSTALLER=1.41.0
EFA_SHA256=3506354cdfbe31ff552fe75f5d0d9bb7efd29cf79bd99457347d29c751c38f9f

cat > /etc/yum.repos.d/neuron.repo <<'REPO'
[neuron]
name=Neuron
baseurl=https://yum.repos.neuron.amazonaws.com
enabled=1
gpgcheck=1
gpgkey=https://yum.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB
REPO
# The driver is compiled for the kernel that runs; it is not updated later, as machines live for hours.
dnf install -y "kernel-devel-uname-r == $(uname -r)" "aws-neuronx-dkms-${NEURON_DRIVER}*"
dkms status | grep 'aws-neuronx.*installed'

cd /tmp
curl --fail --silent --show-error --remote-name \
  "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER}.tar.gz"
echo "${EFA_SHA256}  aws-efa-installer-${EFA_INSTALLER}.tar.gz" | sha256sum --check
tar -xf "aws-efa-installer-${EFA_INSTALLER}.tar.gz"
(cd aws-efa-installer && ./efa_installer.sh --yes --minimal) # drivers only; libfabric is the container's

# Who can use a Neuron device can read the machine's memory: only the workers' group can (WorkerUser of the template).
groupadd --gid 10001 millrace
# The last rule that fits a device counts, in the order of the files' names: zz, since a driver's may begin with letters.
cat > /etc/udev/rules.d/zz-millrace.rules <<'RULES'
SUBSYSTEM=="neuron_device", KERNEL=="neuron*", GROUP="millrace", MODE="0660"
SUBSYSTEM=="infiniband_verbs", KERNEL=="uverbs*", GROUP="millrace", MODE="0660"
RULES

# The copies must register with their own cluster, as themselves.
systemctl stop ecs || true
rm -rf /var/lib/ecs/data/* /tmp/aws-efa-installer*
shutdown --poweroff now
