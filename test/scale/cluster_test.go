// SPDX-License-Identifier: Apache-2.0

//go:build scale

package scale

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/inferencecache/inference-cache/internal/kubetest"
	"github.com/inferencecache/inference-cache/internal/testcert"
)

const (
	root             = "../.."
	installNamespace = "inference-cache-system"
	account          = "inference-cache-controller"
)

// auditPolicy records every call of the controller, and no other.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:` + installNamespace + `:` + account + `"]
- level: None
`

// bed is an API server that says what the controller asked it.
type bed struct {
	*kubetest.Cluster
	audit, kubeconfig string
}

func startBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{audit: filepath.Join(dir, "audit.log"), kubeconfig: filepath.Join(dir, "kubeconfig")}
	policy := filepath.Join(dir, "audit.yaml")
	must(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	b.Cluster = kubetest.Start(t, root+"/deploy/crds", "--audit-policy-file="+policy, "--audit-log-path="+b.audit, "--audit-log-maxsize=10000")
	b.Namespace(t, installNamespace, nil)
	b.trustServers(t)
	b.admit(t)
	return b
}

// trustServers gives the namespaces of backends an authority to have.
func (b *bed) trustServers(t *testing.T) {
	t.Helper()
	authority, err := os.ReadFile(testcert.NewAuthority(t).File)
	must(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: "inference-cache-server-tls"}}
	secret.Data = map[string][]byte{"ca.crt": authority, corev1.TLSCertKey: authority, corev1.TLSPrivateKeyKey: {}}
	must(t, b.Client.Create(t.Context(), secret))
}

// admit lets the controller in under a name of its own.
func (b *bed) admit(t *testing.T) {
	t.Helper()
	user := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: account}}
	must(t, b.Client.Create(t.Context(), user))
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: account}}
	binding.RoleRef = rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}
	binding.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: installNamespace, Name: account}}
	must(t, b.Client.Create(t.Context(), binding))
	request := &authenticationv1.TokenRequest{}
	seconds := int64((4 * time.Hour).Seconds())
	request.Spec.ExpirationSeconds = &seconds
	must(t, b.Client.SubResource("token").Create(t.Context(), user, request))
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: b.Config.Host, CertificateAuthorityData: b.Config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: request.Status.Token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	must(t, clientcmd.WriteToFile(*config, b.kubeconfig))
}

// call is one request of the controller.
type call struct {
	Verb           string
	StageTimestamp time.Time
	ObjectRef      *struct{ Resource, Subresource, Namespace, Name string }
	RequestURI     string
}

func (c call) what() string {
	switch {
	case c.ObjectRef == nil:
		return c.Verb + " (discovery)"
	case c.ObjectRef.Subresource != "":
		return c.Verb + " " + c.ObjectRef.Resource + "/" + c.ObjectRef.Subresource
	}
	return c.Verb + " " + c.ObjectRef.Resource
}

func (c call) ofLease() bool { return c.ObjectRef != nil && c.ObjectRef.Resource == "leases" }

func (c call) writes() bool {
	switch c.Verb {
	case "create", "update", "patch", "delete":
		return !c.ofLease()
	}
	return false
}

// callsSince are those after an offset of the audit log, which it returns for
// the next time. Calls for leases are left out.
func (b *bed) callsSince(t *testing.T, offset int64) ([]call, int64) {
	t.Helper()
	file, err := os.Open(b.audit)
	must(t, err)
	defer file.Close()
	_, err = file.Seek(offset, io.SeekStart)
	must(t, err)
	text, err := io.ReadAll(file)
	must(t, err)
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	var calls []call
	lines := bufio.NewScanner(bytes.NewReader(whole))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var line struct {
			call
			Stage string
		}
		must(t, json.Unmarshal(lines.Bytes(), &line))
		// A watch is a call when it begins.
		if line.ofLease() || (line.Verb == "watch") != (line.Stage == "ResponseStarted") {
			continue
		}
		calls = append(calls, line.call)
	}
	must(t, lines.Err())
	return calls, offset + int64(len(whole))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
