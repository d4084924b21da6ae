// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package server_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/inferencecache/inference-cache/internal/auth"
	"github.com/inferencecache/inference-cache/internal/server"
	"github.com/inferencecache/inference-cache/internal/testcluster"
)

// realCluster issues and reviews the tokens of the matrix's callers.
type realCluster struct {
	t       *testing.T
	cluster *testcluster.Cluster
	tokens  map[string]string
}

func startRealCluster(t *testing.T) *realCluster {
	c := &realCluster{t: t, cluster: testcluster.ForTest(t), tokens: make(map[string]string)}
	for namespace, accounts := range map[string][]string{
		"ic": {"controller", "rogue", "server"}, "team": {"engine"}, "other": {"engine"}, "gw": {"team", "other", "nobody"},
		"ops": {"alice", "carol"}, "absent": nil, "else": nil,
	} {
		c.must(c.cluster.Admin.Namespace(t.Context(), namespace))
		for _, account := range accounts {
			c.must(c.cluster.Admin.ServiceAccount(t.Context(), namespace, account))
		}
	}
	admin := c.cluster.Admin
	c.must(admin.AllowReviews(t.Context(), "ic", "server"))
	c.must(admin.AllowAccessReviews(t.Context(), "ic", "server"))
	lookups := testcluster.Grant{AccountNamespace: "gw", Group: "inferencecache.io", Resource: "lookups", Verb: "get"}
	for namespace, account := range map[string]string{"team": "team", "absent": "team", "else": "other"} {
		lookups.Namespace, lookups.Account = namespace, account
		c.must(admin.Allow(t.Context(), lookups))
	}
	c.must(admin.Allow(t.Context(), testcluster.Grant{
		AccountNamespace: "ops", Account: "carol", Group: "inferencecache.io", Resource: "operators", Verb: "get",
	}))
	return c
}

func (c *realCluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// issue makes a token under the name that the matrix gives it.
func (c *realCluster) issue(name string, r testcluster.TokenRequest) string {
	c.t.Helper()
	token, err := c.cluster.Admin.Token(c.t.Context(), r)
	c.must(err)
	c.tokens[name] = token
	return token
}

// bound makes a pod and a token bound to it.
func (c *realCluster) bound(name, namespace, account, pod string) {
	c.t.Helper()
	uid, err := c.cluster.Admin.Pod(c.t.Context(), namespace, pod, account)
	c.must(err)
	c.issue(name, testcluster.TokenRequest{Namespace: namespace, Account: account, Audience: server.AudienceIngest, Pod: pod, PodUID: uid})
}

func (c *realCluster) reviewer() *auth.APIServer {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "token")
	c.must(os.WriteFile(file, []byte(c.issue("own", testcluster.TokenRequest{Namespace: "ic", Account: "server"})), 0o600))
	reviewer, err := auth.NewAPIServer(auth.Cluster{URL: c.cluster.URL, CAFile: c.cluster.CAFile, TokenFile: file}, slog.New(slog.DiscardHandler))
	c.must(err)
	c.t.Cleanup(reviewer.Close)
	return reviewer
}

// The rows of the matrix hold with tokens of a real API server.
func TestSEC_01_EnvtestMatrix(t *testing.T) {
	c := startRealCluster(t)
	reviewer := c.reviewer()
	c.bound("tok-pod-a", "team", "engine", "pod-a")
	c.bound("tok-pod-b", "team", "engine", "pod-b")
	c.bound("tok-pod-a-other", "other", "engine", "pod-a")
	c.bound("tok-gone", "team", "engine", "pod-gone")
	c.must(c.cluster.Admin.Delete(t.Context(), "/api/v1/namespaces/team/pods/pod-gone"))
	for name, r := range map[string]testcluster.TokenRequest{
		"tok-unbound":      {Namespace: "team", Account: "engine", Audience: server.AudienceIngest},
		"tok-default":      {Namespace: "team", Account: "engine"},
		"tok-gateway":      {Namespace: "gw", Account: "team", Audience: server.AudienceLookup},
		"tok-other-gw":     {Namespace: "gw", Account: "other", Audience: server.AudienceLookup},
		"tok-unmapped":     {Namespace: "gw", Account: "nobody", Audience: server.AudienceLookup},
		"tok-reader":       {Namespace: "ic", Account: "controller", Audience: audienceController},
		"tok-pusher":       {Namespace: "ic", Account: "controller", Audience: audiencePolicy},
		"tok-rogue-reader": {Namespace: "ic", Account: "rogue", Audience: audienceController},
		"tok-rogue-pusher": {Namespace: "ic", Account: "rogue", Audience: audiencePolicy},

		operatorToken("tok-operator"):    {Namespace: "ops", Account: "alice", Audience: auth.AudienceOperator},
		operatorToken("tok-by-role"):     {Namespace: "ops", Account: "carol", Audience: auth.AudienceOperator},
		operatorToken("tok-no-operator"): {Namespace: "gw", Account: "nobody", Audience: auth.AudienceOperator},
	} {
		c.issue(name, r)
	}
	for _, row := range matrix {
		if row.modes[0] != server.AuthRequired || row.before != nil {
			continue
		}
		t.Run(row.caller, func(t *testing.T) {
			g := startGuarded(t, server.AuthRequired, func(o *server.Options) {
				if row.byRoles {
					byRoles(t, o, reviewer)
				} else {
					admitBy(t, o, reviewer, nil)
				}
			})
			row.token = c.tokens[row.token]
			for i, op := range operations {
				g.checkCell(op, row, row.want[i])
			}
		})
	}
}
