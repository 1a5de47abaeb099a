#!/bin/bash
# Makes the AMI of the accelerator machines, as user data of an instance of the ECS-optimised Amazon Linux 2023 AMI:
# pinned Neuron and EFA drivers, whose devices belong to one group. docs/aws.md has the commands. The machine stops
# after success; a machine that keeps running has failed: see its console output.
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
# The driver is compiled for the running kernel; it is not updated later, as machines live for hours.
dnf install -y "kernel-devel-uname-r == $(uname -r)" "aws-neuronx-dkms-${NEURON_DRIVER}*"
dkms status | grep 'aws-neuronx.*installed'

cd /tmp
curl --fail --silent --show-error --remote-name \
  "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER}.tar.gz"
echo "${EFA_SHA256}  aws-efa-installer-${EFA_INSTALLER}.tar.gz" | sha256sum --check
tar -xf "aws-efa-installer-${EFA_INSTALLER}.tar.gz"
(cd aws-efa-installer && ./efa_installer.sh --yes --minimal) # drivers only; libfabric is the container's

# A user of a Neuron device can read the machine's memory, so only the workers' group has access (WorkerUser).
groupadd --gid 10001 millrace
# The last matching rule counts, in the order of file names: zz, since a driver's file name may begin with letters.
cat > /etc/udev/rules.d/zz-millrace.rules <<'RULES'
SUBSYSTEM=="neuron_device", KERNEL=="neuron*", GROUP="millrace", MODE="0660"
SUBSYSTEM=="infiniband_verbs", KERNEL=="uverbs*", GROUP="millrace", MODE="0660"
RULES

# The copies must register with their own cluster, as themselves.
systemctl stop ecs || true
rm -rf /var/lib/ecs/data/* /tmp/aws-efa-installer*
shutdown --poweroff now
