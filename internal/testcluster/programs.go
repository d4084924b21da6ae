// SPDX-License-Identifier: Apache-2.0

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Versions built.
const (
	KubernetesVersion = "v1.35.4"
	EtcdVersion       = "v3.6.16"
	CoreDNSVersion    = "v1.15.0"
	HelmVersion       = "v4.3.1"
)

// stagingVersion is that of the modules published with KubernetesVersion.
var stagingVersion = strings.Replace(KubernetesVersion, "v1.", "v0.", 1)

// staging are the modules that k8s.io/kubernetes requires at v0.0.0, which is
// published nowhere.
var staging = strings.Fields(`api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider
	cluster-bootstrap code-generator component-base component-helpers controller-manager cri-api cri-client
	csi-translation-lib dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator
	kube-controller-manager kube-proxy kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission
	sample-apiserver`)

// binary is a program built from a module.
type binary struct {
	name, module, version, pkg string
	goVersion                  string
	ldflags                    string
	// requirements is the text of go.mod beyond the module.
	requirements string
	// shared programs are built with this repository's versions of libraries
	// where those are later, since the build cache has these.
	shared bool
	// source is the main program, if the module's own is not what is built.
	source string
	// static programs run in images.
	static bool
}

// serverPrograms are what an API server needs.
func serverPrograms() []binary {
	return []binary{
		{name: "etcd", module: "go.etcd.io/etcd/server/v3", version: EtcdVersion, pkg: "go.etcd.io/etcd/server/v3", goVersion: "1.24.0", ldflags: "-s -w"},
		kubernetes("kube-apiserver"),
	}
}

// nodePrograms are what a node needs beyond serverPrograms.
func nodePrograms() []binary {
	return []binary{
		kubernetes("kube-controller-manager"), kubernetes("kube-scheduler"),
		kubernetes("kubelet"), kubernetes("kube-proxy"), kubernetes("kubectl"),
		{
			name: "coredns", module: "github.com/coredns/coredns", version: CoreDNSVersion, pkg: ".", goVersion: "1.26.0",
			ldflags: "-s -w", shared: true, source: coreDNSMain, static: true,
		},
		{
			name: "helm", module: "helm.sh/helm/v4", version: HelmVersion, pkg: "helm.sh/helm/v4/cmd/helm", goVersion: "1.26.0",
			ldflags: "-s -w", shared: true,
		},
	}
}

func kubernetes(name string) binary {
	return binary{
		name: name, module: "k8s.io/kubernetes", version: KubernetesVersion, pkg: "k8s.io/kubernetes/cmd/" + name, goVersion: "1.25.0",
		ldflags: kubernetesFlags(), requirements: kubernetesReplacements(),
	}
}

func kubernetesFlags() string {
	parts := strings.Split(strings.TrimPrefix(KubernetesVersion, "v"), ".")
	const version = "k8s.io/component-base/version."
	return "-s -w -X " + version + "gitVersion=" + KubernetesVersion +
		" -X " + version + "gitMajor=" + parts[0] + " -X " + version + "gitMinor=" + parts[1]
}

func kubernetesReplacements() string {
	var text strings.Builder
	for _, name := range staging {
		fmt.Fprintf(&text, "replace k8s.io/%s => k8s.io/%s %s\n", name, name, stagingVersion)
	}
	return text.String()
}

// coreDNSMain is CoreDNS with the plugins that a cluster needs.
const coreDNSMain = `package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/coremain"
)

func main() { coremain.Run() }
`

// NodeBinaries are the paths of the programs of a node and its users.
type NodeBinaries struct {
	Binaries
	ControllerManager, Scheduler, Kubelet, Proxy, Kubectl string
	// CoreDNS is static, for an image.
	CoreDNS string
	Helm    string
}

// ErrNodeNotBuilt means that a program of a node is not in the cache.
var ErrNodeNotBuilt = errors.New("programs of the cluster's node are not built: run make cluster-node-bin")

// FindNode returns the programs of a cache, or ErrNodeNotBuilt.
func FindNode(cache string) (NodeBinaries, error) {
	paths, missing := find(cache, append(serverPrograms(), nodePrograms()...))
	if len(missing) > 0 {
		return NodeBinaries{}, fmt.Errorf("%w (%s missing)", ErrNodeNotBuilt, strings.Join(missing, ", "))
	}
	return NodeBinaries{
		Binaries:          Binaries{Etcd: paths["etcd"], APIServer: paths["kube-apiserver"]},
		ControllerManager: paths["kube-controller-manager"], Scheduler: paths["kube-scheduler"],
		Kubelet: paths["kubelet"], Proxy: paths["kube-proxy"], Kubectl: paths["kubectl"],
		CoreDNS: paths["coredns"], Helm: paths["helm"],
	}, nil
}

// BuildNode builds the programs of FindNode that a cache lacks. It takes 20
// minutes on two cores; output shows how far it is.
func BuildNode(ctx context.Context, cache string, output io.Writer) error {
	return build(ctx, cache, output, append(serverPrograms(), nodePrograms()...))
}
