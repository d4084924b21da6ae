// SPDX-License-Identifier: Apache-2.0

package chart

// grant is one permission. The table below is what the rendered roles, and the
// table in docs/install.md, must be.
type grant struct {
	who   string
	scope string // cluster, or namespace for that of the release
	group string // core for ""
	// resource may be narrowed to one object by "resource name".
	resource string
	verbs    string
	// when is the value that it takes; empty for always.
	when string
}

const (
	manager   = "controller"
	read      = "get list watch"
	editOne   = "get patch update"
	watchOne  = "get list patch update watch"
	ownGroup  = "inferencecache.io"
	webhooks  = "admissionregistration.k8s.io"
	lockName  = "inference-cache-controller-leader-lock"
	caMapName = "inference-cache-server-ca"
)

// permissions of the processes.
var permissions = []grant{
	{"server", "cluster", "authentication.k8s.io", "tokenreviews", "create", ""},

	{manager, "cluster", ownGroup, "cachebackends", read, ""},
	{manager, "cluster", ownGroup, "cacheindices", "create " + read, ""},
	{manager, "cluster", ownGroup, "cachepolicies", read, ""},
	{manager, "cluster", ownGroup, "cachetenants", read, ""},
	{manager, "cluster", ownGroup, "pdtopologies", read, ""},
	{manager, "cluster", ownGroup, "prompttemplates", read, ""},
	{manager, "cluster", ownGroup, "cachebackends/status", editOne, ""},
	{manager, "cluster", ownGroup, "cacheindices/status", editOne, ""},
	{manager, "cluster", ownGroup, "cachepolicies/status", editOne, ""},
	{manager, "cluster", ownGroup, "cachetenants/status", editOne, ""},
	{manager, "cluster", ownGroup, "pdtopologies/status", editOne, ""},
	{manager, "cluster", ownGroup, "prompttemplates/status", editOne, ""},
	{manager, "cluster", "core", "pods", read, ""},
	{manager, "cluster", "core", "namespaces", read, ""},
	{manager, "cluster", "core", "nodes", read, ""},
	{manager, "cluster", "apps", "deployments", read, ""},
	{manager, "cluster", "apps", "replicasets", read, ""},
	{manager, "cluster", "apps", "statefulsets", read, ""},
	{manager, "cluster", "core", "events", "create patch", ""},
	{manager, "cluster", "events.k8s.io", "events", "create patch", ""},
	{manager, "cluster", "core", "configmaps", "create", ""},
	{manager, "cluster", "core", "configmaps " + caMapName, "delete get list patch update watch", ""},

	{manager, "namespace", "coordination.k8s.io", "leases", "create", ""},
	{manager, "namespace", "coordination.k8s.io", "leases " + lockName, editOne, ""},
	{manager, "namespace", "discovery.k8s.io", "endpointslices", read, ""},

	{manager, "namespace", "core", "secrets inference-cache-server-tls", "get", ""},
	{manager, "namespace", "core", "secrets", "create", selfSigned},
	{manager, "namespace", "core", "secrets webhook-server-cert", editOne, webhookSelf},
	{manager, "cluster", webhooks, "mutatingwebhookconfigurations inference-cache-mutating-webhook-configuration", watchOne, webhookSelf},
	{manager, "cluster", webhooks, "validatingwebhookconfigurations inference-cache-validating-webhook-configuration", watchOne, webhookSelf},
	{manager, "namespace", "core", "secrets inference-cache-server-tls", editOne, tlsSelf},
	{manager, "namespace", "core", "secrets inference-cache-server-ca", editOne, tlsSelf},

	{manager, "cluster", "core", "pods", "patch", repair},
	{manager, "cluster", ownGroup, "cachebackends/finalizers", "update", adapters},
	{manager, "cluster", "core", "pods", "create delete patch", adapters},
	{manager, "cluster", "apps", "deployments", "create delete patch update", adapters},
	{manager, "cluster", "core", "services", "create delete get list patch update watch", adapters},
	{manager, "cluster", "networking.k8s.io", "networkpolicies", "create delete get list patch update watch", adapters},
	{manager, "cluster", "authentication.k8s.io", "tokenreviews", "create", secureMetrics},
	{manager, "cluster", "authorization.k8s.io", "subjectaccessreviews", "create", secureMetrics},
	{"server", "cluster", "authorization.k8s.io", "subjectaccessreviews", "create", byRoles},
}

// Values that permissions depend on, as documented. The first two are defaults.
const (
	tlsSelf       = "tls.mode: self"
	webhookSelf   = "webhook.certMode: self"
	selfSigned    = "either mode self"
	repair        = "injection.repairSidecarImage"
	adapters      = "adapters.enabled"
	secureMetrics = "controller.metricsSecure"
	byRoles       = "server.tenantAuthz: rbac"
)
