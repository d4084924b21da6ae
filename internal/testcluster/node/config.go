// SPDX-License-Identifier: Apache-2.0

package node

import (
	_ "embed"
	"fmt"
	"os"
	"strings"
)

// Names and addresses of the cluster.
const (
	network    = "ic-cluster"
	bridge     = "ic-cni0"
	podRange   = "10.244.0.0/16"
	nodePods   = "10.244.0.0/24"
	services   = "10.96.0.0/16"
	firstOfAll = "10.96.0.1"
	dnsAddress = "10.96.0.10"
	apiServer  = "https://127.0.0.1:6443"

	pauseImage = "ic.test/pause:1"
	dnsImage   = "ic.test/coredns:1"
)

// AuditedNamespace is that of the accounts whose requests are recorded.
const AuditedNamespace = "inference-cache-system"

//go:embed dns.yaml
var dnsObjects string

// expand replaces $NAME in a configuration.
func (n *Node) expand(text string) string {
	return strings.NewReplacer(
		"$W", n.Dir, "$PLUGINS", n.host.plugins, "$NETWORK", network, "$BRIDGE", bridge,
		"$POD_RANGE", podRange, "$NODE_PODS", nodePods, "$NODE", n.Name, "$DNS_ADDRESS", dnsAddress, "$DNS_IMAGE", dnsImage,
		"$PAUSE_IMAGE", pauseImage, "$API_SERVER", apiServer, "$CA", n.pki.CA, "$ADMIN_CERT", n.pki.AdminCert, "$ADMIN_KEY", n.pki.AdminKey,
	).Replace(text)
}

// configurations are the files by their names in the node's folder.
func (n *Node) configurations() map[string]string {
	return map[string]string{
		"admin.conf":             adminConf,
		"containerd.toml":        containerdConf,
		"cni/10-bridge.conflist": networkConf,
		"kubelet.yaml":           kubeletConf,
		"proxy.yaml":             proxyConf,
		"audit.yaml":             auditConf,
	}
}

func (n *Node) writeConfigurations() error {
	for name, text := range n.configurations() {
		if err := os.WriteFile(n.folder().path(name), []byte(n.expand(text)), 0o600); err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
	}
	return nil
}

const adminConf = `apiVersion: v1
kind: Config
current-context: ic-cluster
contexts: [{name: ic-cluster, context: {cluster: ic-cluster, user: admin}}]
clusters: [{name: ic-cluster, cluster: {server: "$API_SERVER", certificate-authority: "$CA"}}]
users: [{name: admin, user: {client-certificate: "$ADMIN_CERT", client-key: "$ADMIN_KEY"}}]
`

// restrict_oom_score_adj is for machines without CAP_SYS_RESOURCE, which may
// not lower it.
const containerdConf = `version = 2
root = "$W/containerd"
state = "$W/containerd-run"
[grpc]
  address = "$W/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$W/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "$PAUSE_IMAGE"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$PLUGINS"
    conf_dir = "$W/cni"
`

const networkConf = `{"cniVersion": "0.4.0", "name": "$NETWORK", "plugins": [
  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$W/leases", "ranges": [[{"subnet": "$NODE_PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

// Images are imported, so none that is unused may be collected. cgroup v1 and a
// machine without systemd are fine.
const kubeletConf = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: true
enforceNodeAllocatable: []
failSwapOn: false
containerRuntimeEndpoint: unix://$W/containerd.sock
volumePluginDir: $W/volume-plugins
podLogsDir: $W/pods-log
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$CA"}}
authorization: {mode: Webhook}
clusterDNS: ["$DNS_ADDRESS"]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
configMapAndSecretChangeDetectionStrategy: Watch
syncFrequency: 10s
imageGCHighThresholdPercent: 100
evictionHard: {imagefs.available: "1%", nodefs.available: "1%", memory.available: 100Mi}
`

// The zeros keep the proxy from changing kernel settings.
const proxyConf = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: $POD_RANGE
hostnameOverride: $NODE
clientConnection: {kubeconfig: "$W/admin.conf"}
iptables: {localhostNodePorts: false}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

const auditConf = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, Panic]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts:` + AuditedNamespace + `"]}
- {level: None}
`
