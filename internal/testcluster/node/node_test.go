// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/testcluster"
)

func testFolder(t *testing.T) folder {
	t.Helper()
	dir, err := os.MkdirTemp("", "node-") // those of tests are too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d, err := newFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFolderNamesLeaveRoomForSockets(t *testing.T) {
	for _, dir := range []string{"/tmp/" + strings.Repeat("x", maxDir), "/tmp/a b", `/tmp/a"b`, "/tmp/$W"} {
		if _, err := newFolder(dir); err == nil || !strings.Contains(err.Error(), strconv.Quote(dir)) {
			t.Errorf("%q: %v", dir, err)
		}
	}
	t.Setenv("IC_CLUSTER_DIR", "/tmp/elsewhere")
	if got := Dir(); got != "/tmp/elsewhere" {
		t.Errorf("Dir() = %q", got)
	}
}

func TestLockIsHeldUntilReleased(t *testing.T) {
	d := testFolder(t)
	var said strings.Builder
	release, err := d.lock(t.Context(), useName, &said)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.lock(ended, useName, &said); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), d.path(useName)) {
		t.Errorf("a second holder: %v", err)
	}
	if !strings.Contains(said.String(), "waiting") {
		t.Errorf("it said %q", said.String())
	}
	release()
	again, err := d.lock(t.Context(), useName, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestDaemonsAreRecordedAndHalted(t *testing.T) {
	d := testFolder(t)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	if err := d.run("etcd", sleep, "60"); err != nil {
		t.Fatal(err)
	}
	p, ok := d.recorded("etcd")
	if !ok || !d.alive("etcd") {
		t.Fatalf("recorded %+v, alive %v", p, d.alive("etcd"))
	}
	other := process{pid: p.pid, started: "1"}
	if err := other.halt(t.Context()); err != nil || !d.alive("etcd") {
		t.Errorf("an earlier process of the same id: %v, alive %v", err, d.alive("etcd"))
	}
	if err := d.halt(t.Context(), "etcd"); err != nil {
		t.Fatal(err)
	}
	if _, ok := d.recorded("etcd"); ok || p.alive() {
		t.Errorf("after halt: recorded %v, alive %v", ok, p.alive())
	}
	if err := d.halt(t.Context(), "kubelet"); err != nil {
		t.Errorf("one that never ran: %v", err)
	}
}

func TestPartThatEndsIsReported(t *testing.T) {
	d := testFolder(t)
	failing, err := exec.LookPath("ls")
	if err != nil {
		t.Skip(err)
	}
	if err := d.run("etcd", failing, "/absent-of-this-test"); err != nil {
		t.Fatal(err)
	}
	n := &Node{Dir: string(d)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = n.await(ctx, "API server", func() error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "etcd ended") || !strings.Contains(err.Error(), "absent-of-this-test") {
		t.Errorf("%v", err)
	}
}

func TestConfigurationsAreComplete(t *testing.T) {
	d := testFolder(t)
	n := &Node{Dir: string(d), Name: "node1", host: &host{plugins: "/usr/lib/cni"}, pki: &testcluster.PKI{CA: "/ca", AdminCert: "/cert", AdminKey: "/key"}}
	if err := n.writeConfigurations(); err != nil {
		t.Fatal(err)
	}
	for name := range n.configurations() {
		text, err := os.ReadFile(d.path(name))
		if err != nil || strings.Contains(string(text), "$") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	if text := n.expand(dnsObjects); strings.Contains(text, "$") || !strings.Contains(text, "clusterIP: "+dnsAddress) {
		t.Errorf("DNS:\n%s", text)
	}
}

func TestMachinesThatLackSomethingSayWhat(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	h := &host{programs: map[string]string{"containerd": "/x", "ctr": "/x", "runc": "/x", "ip": "/x", "mount": "/x", "conntrack": "/x"}}
	if got := strings.Join(h.missing(), " "); got != "containernetworking-plugins iptables socat redis-tools" {
		t.Errorf("missing %q", got)
	}
}

func TestClearKeepsLogsAndLocks(t *testing.T) {
	d := testFolder(t)
	release, err := d.lock(t.Context(), lockName, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := os.WriteFile(d.logFile("etcd"), []byte("text\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.clear(); err != nil {
		t.Fatal(err)
	}
	entries, err := filepath.Glob(d.path("*"))
	if err != nil || len(entries) != 2 || d.lastLines("etcd") != "text" {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestOwnAddressIsNotLoopback(t *testing.T) {
	address, err := ownAddress()
	if err != nil {
		t.Skip(err) // a machine without a network
	}
	if address.IsLoopback() || net.IP.IsUnspecified(address) {
		t.Errorf("address %s", address)
	}
}
