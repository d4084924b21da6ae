// SPDX-License-Identifier: Apache-2.0

// Package node runs a real Kubernetes cluster of one node on this machine: etcd,
// API server, controller manager, scheduler, containerd, kubelet, proxy and DNS.
//
// Kubernetes itself is built by package testcluster; containerd, runc and the
// network plugins are Debian's. Images are imported from archives, so there is
// no registry. Ports are fixed, so there is one cluster on a machine. It takes
// root.
//
// All state is in one folder, and all that is changed outside it (mounts,
// network namespaces, the bridge, iptables, kernel settings) is undone by Stop,
// and by the next Start when a cluster was killed.
package node
