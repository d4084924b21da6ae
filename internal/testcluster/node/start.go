// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/testcluster"
)

// ports are those that the cluster listens on.
var ports = []string{"2379", "2380", "6443", "10250", "10256", "10257", "10259"}

func (n *Node) start(ctx context.Context, o Options, tool []byte) error {
	started := time.Now()
	say := func(what string) {
		fmt.Fprintf(o.Output, "%5.1fs %s\n", time.Since(started).Seconds(), what)
	}
	if err := n.prepare(); err != nil {
		return err
	}
	if err := n.startControlPlane(ctx, o); err != nil {
		return err
	}
	say("API server ready")
	if err := n.startContainerd(ctx, tool); err != nil {
		return err
	}
	say("containerd ready, images imported")
	if err := n.startKubelet(o); err != nil {
		return err
	}
	if err := n.awaitNode(ctx); err != nil {
		return err
	}
	say("node ready")
	if !o.WithoutProxy && !o.WithoutDNS {
		if err := n.startDNS(ctx); err != nil {
			return err
		}
		say("DNS ready")
	}
	text, err := json.Marshal(readiness{Name: n.Name, Address: n.Address, Keep: n.Kept})
	if err != nil {
		return err
	}
	return os.WriteFile(n.folder().path("run", readyName), text, 0o644)
}

func (n *Node) prepare() error {
	for _, port := range ports {
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return fmt.Errorf("port %s, which the cluster needs, is taken: another cluster may run on this machine: %w", port, err)
		}
		listener.Close()
	}
	var err error
	if n.Address, err = ownAddress(); err != nil {
		return err
	}
	if err := n.folder().prepare(); err != nil {
		return err
	}
	if err := n.folder().saveSettings(); err != nil {
		return err
	}
	if n.pki, err = testcluster.NewPKI(n.folder().path("pki"), n.Address, net.ParseIP(firstOfAll)); err != nil {
		return err
	}
	return n.writeConfigurations()
}

// ownAddress is the machine's on its default route. Nothing is sent.
func ownAddress() (net.IP, error) {
	conn, err := net.Dial("udp4", "198.51.100.1:9")
	if err != nil {
		return nil, fmt.Errorf("find this machine's address: %w", err)
	}
	defer conn.Close()
	address, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok || address.IP.IsLoopback() {
		return nil, errors.New("find this machine's address: it has none but loopback")
	}
	return address.IP, nil
}

func (n *Node) startControlPlane(ctx context.Context, o Options) error {
	d := n.folder()
	const etcd, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	if err := d.run("etcd", n.Programs.Etcd,
		"--data-dir="+d.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers,
	); err != nil {
		return err
	}
	if err := d.run("kube-apiserver", n.Programs.APIServer, append([]string{
		"--etcd-servers=" + etcd, "--advertise-address=" + n.Address.String(), "--secure-port=6443",
		"--tls-cert-file=" + n.pki.ServerCert, "--tls-private-key-file=" + n.pki.ServerKey, "--client-ca-file=" + n.pki.CA,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + n.pki.AccountPublic, "--service-account-signing-key-file=" + n.pki.AccountKey,
		"--authorization-mode=Node,RBAC", "--service-cluster-ip-range=" + services, "--allow-privileged",
		"--kubelet-client-certificate=" + n.pki.AdminCert, "--kubelet-client-key=" + n.pki.AdminKey,
		"--kubelet-preferred-address-types=InternalIP",
		"--audit-policy-file=" + d.path("audit.yaml"), "--audit-log-path=" + n.AuditLog(),
	}, o.APIServerFlags...)...); err != nil {
		return err
	}
	if err := n.await(ctx, "API server", func() error {
		_, err := n.Kubectl(ctx, "", "get", "--raw", "/readyz")
		return err
	}); err != nil {
		return err
	}
	if err := d.run("kube-controller-manager", n.Programs.ControllerManager,
		"--kubeconfig="+n.Kubeconfig, "--service-account-private-key-file="+n.pki.AccountKey, "--root-ca-file="+n.pki.CA,
		"--use-service-account-credentials", "--cluster-cidr="+podRange, "--allocate-node-cidrs=true",
		"--leader-elect=false", "--bind-address=127.0.0.1",
	); err != nil {
		return err
	}
	return d.run("kube-scheduler", n.Programs.Scheduler, "--kubeconfig="+n.Kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1")
}

func (n *Node) startContainerd(ctx context.Context, tool []byte) error {
	d := n.folder()
	if err := d.run("containerd", n.host.programs["containerd"], "-c", d.path("containerd.toml")); err != nil {
		return err
	}
	if err := n.await(ctx, "containerd", func() error {
		conn, err := net.Dial("unix", d.path("containerd.sock"))
		if err != nil {
			return err
		}
		return conn.Close()
	}); err != nil {
		return err
	}
	return n.importOwn(ctx, tool)
}

func (n *Node) startKubelet(o Options) error {
	d := n.folder()
	if err := d.run("kubelet", n.Programs.Kubelet,
		"--config="+d.path("kubelet.yaml"), "--kubeconfig="+n.Kubeconfig, "--hostname-override="+n.Name, "--node-ip="+n.Address.String(),
		"--root-dir="+d.path("kubelet"), "--cert-dir="+d.path("kubelet-pki"),
	); err != nil {
		return err
	}
	if o.WithoutProxy {
		return nil
	}
	return d.run("kube-proxy", n.Programs.Proxy, "--config="+d.path("proxy.yaml"))
}

func (n *Node) awaitNode(ctx context.Context) error {
	return n.await(ctx, "node", func() error {
		output, err := n.Kubectl(ctx, "", "get", "node", n.Name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		if err == nil && !strings.Contains(output, `"status":"True"`) {
			err = fmt.Errorf("not ready: %s", output)
		}
		return err
	})
}

func (n *Node) startDNS(ctx context.Context) error {
	if _, err := n.Kubectl(ctx, n.expand(dnsObjects), "apply", "-f", "-"); err != nil {
		return err
	}
	return n.await(ctx, "DNS", func() error {
		ready, err := n.Kubectl(ctx, "", "-n", "kube-system", "get", "deployment", "coredns", "-o", "jsonpath={.status.readyReplicas}")
		if err == nil && ready != "1" {
			err = errors.New("not ready")
		}
		return err
	})
}

// await repeats a check until it passes, a part of the cluster ends or ctx
// does.
func (n *Node) await(ctx context.Context, what string, check func() error) error {
	var last, ended error
	if poll(ctx, func() bool {
		if last = check(); last == nil {
			return true
		}
		for _, name := range daemons {
			if _, started := n.folder().recorded(name); started && !n.folder().alive(name) {
				ended = fmt.Errorf("%s ended: %s", name, n.folder().lastLines(name))
				return true
			}
		}
		return false
	}) {
		return ended
	}
	return fmt.Errorf("wait for the %s: %w", what, last)
}
