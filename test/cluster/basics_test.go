// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestClusterRunsPodsThatAnswer(t *testing.T) {
	e := newEnv(t, restricted)
	e.waitFor("node/"+e.node.Name, "Ready")
	e.startTool("web")
	e.kubectl("expose", "pod", "web", "--port=80", "--target-port=8000")
	e.startTool("client")

	t.Run("the machine reaches a pod", func(t *testing.T) {
		address := e.kubectl("get", "pod", "web", "-o", "jsonpath={.status.podIP}")
		response, err := http.Get(fmt.Sprintf("http://%s:8000/from-the-machine", address))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || !strings.Contains(string(body), "host web\npath /from-the-machine") {
			t.Errorf("%q, %v", body, err)
		}
	})
	for _, name := range []string{"web", "web." + e.namespace + ".svc", "web." + e.namespace + ".svc.cluster.local"} {
		t.Run("a pod reaches the service "+strings.ReplaceAll(name, e.namespace, "NAMESPACE"), func(t *testing.T) {
			e.eventually("an answer of "+name, func() error {
				output, err := e.tool("client", "get", "http://"+name+"/")
				if err == nil && !strings.Contains(output, "host web") {
					err = fmt.Errorf("answer %q", output)
				}
				return err
			})
		})
	}
	t.Run("a pod resolves a service to its address", func(t *testing.T) {
		want := e.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		if got, err := e.tool("client", "resolve", "web"); err != nil || strings.TrimSpace(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	})
	t.Run("a pod has a token of its own", func(t *testing.T) {
		if token, err := e.tool("client", "cat", lookupToken); err != nil || strings.Count(token, ".") != 2 {
			t.Errorf("a token of %d bytes, %v", len(token), err)
		}
	})
	t.Run("logs are there", func(t *testing.T) {
		if got := e.logs("web", "tool"); !strings.Contains(got, "serving on") {
			t.Errorf("logs %q", got)
		}
	})
	t.Run("what a command complains of is told", func(t *testing.T) {
		if _, err := e.tool("client", "cat", "/absent"); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%v", err)
		}
	})
}

// releaseJob runs a command of a release image to its end.
const releaseJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: NAME}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: run
        image: IMAGE
        imagePullPolicy: Never
        args: [ARG]
        securityContext: {runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
`

func TestReleaseImagesRun(t *testing.T) {
	e := newEnv(t, restricted)
	for name, tc := range map[string]struct{ image, arg, want string }{
		"all-roles": {"ic.test/inferencecache:dev", "version", "inferencecache "},
		"publisher": {"ic.test/kvevent-subscriber:dev", "--help", "--engine-url"},
	} {
		t.Run(name, func(t *testing.T) {
			e.apply(strings.NewReplacer("NAME", name, "IMAGE", tc.image, "ARG", tc.arg).Replace(releaseJob))
			e.waitFor("job/"+name, "Complete")
			if got := e.logs("job/"+name, ""); !strings.Contains(got, tc.want) {
				t.Errorf("it printed %q", got)
			}
		})
	}
}
