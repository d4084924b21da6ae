// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/imagetar"
	"github.com/inferencecache/inference-cache/internal/testcluster/node"
)

// redisImage is one of the machine's own Redis.
const redisImage = "ic.test/redis:dev"

// importRedis makes redisImage of the programs of Debian's redis-tools, whose
// redis-check-rdb is the server under another name, and their libraries.
func (e *env) importRedis() {
	e.t.Helper()
	image := imagetar.Image{Name: redisImage, Entrypoint: []string{"/usr/bin/redis-server"}}
	there := make(map[string]bool)
	add := func(path, source string) {
		data, err := os.ReadFile(source)
		if err != nil {
			e.t.Fatal(err)
		}
		if !there[path] {
			image.Files = append(image.Files, imagetar.File{Path: path, Executable: true, Data: data})
		}
		there[path] = true
	}
	for name, program := range map[string]string{"redis-server": "redis-check-rdb", "redis-cli": "redis-cli"} {
		source, err := exec.LookPath(program)
		if err != nil {
			e.t.Fatal(err)
		}
		add("/usr/bin/"+name, source)
		for _, library := range e.libraries(source) {
			add(library, library)
		}
	}
	e.importImage(image)
}

func (e *env) importImage(image imagetar.Image) {
	e.t.Helper()
	image.Architecture = runtime.GOARCH
	archive := filepath.Join(e.t.TempDir(), "image.tar")
	file, err := os.Create(archive)
	if err != nil {
		e.t.Fatal(err)
	}
	defer file.Close()
	if _, err := image.Write(file); err != nil {
		e.t.Fatal(err)
	}
	if err := e.node.Import(e.t.Context(), archive); err != nil {
		e.t.Fatal(err)
	}
}

// libraries are the files that a program is linked to, its loader among them.
func (e *env) libraries(program string) (files []string) {
	e.t.Helper()
	output, err := exec.CommandContext(e.t.Context(), "ldd", program).Output()
	if err != nil {
		e.t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(output)) {
		if filepath.IsAbs(word) {
			files = append(files, word)
		}
	}
	return files
}

// importLMCache makes an image that stands in for LMCache's, and returns its
// name.
func (e *env) importLMCache() string {
	e.t.Helper()
	tool, err := node.BuildTool(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	image := imagetar.Image{
		Name: "ic.test/lmcache:dev", Entrypoint: []string{"/usr/bin/lmcache"},
		Files: []imagetar.File{{Path: "/usr/bin/lmcache", Executable: true, Data: tool}},
	}
	e.importImage(image)
	pinned, err := e.node.Pin(e.t.Context(), image.Name)
	if err != nil {
		e.t.Fatal(err)
	}
	return pinned
}

// offloadingYAML has engines keep blocks in a Redis that the controller runs.
const offloadingYAML = `
apiVersion: inferencecache.io/v1alpha1
kind: CacheBackend
metadata: {name: kept}
spec:
  runtime: VLLM
  type: LMCache
  engineSelector: {matchLabels: {inferencecache.io/cache-domain: kept}}
  observation: {modelID: sim}
  lmCache:
    topology: PodLocal
    podLocal:
      server:
        image: LMCACHE
        port: 6555
        l1Capacity: 16Mi
        maxWorkers: 1
        resources: {requests: {cpu: 10m, memory: 1040Mi}, limits: {memory: 1040Mi}}
  remoteStorage:
    provider: Redis
    ownership: Managed
    redis:
      image: REDIS
      resources: {requests: {memory: 20Mi}, limits: {memory: 100Mi}}
      authentication: {password: {name: redis, key: password}}
`

// redis runs redis-cli in the pod of the storage, which has the password.
func (e *env) redis(args ...string) (string, error) {
	return e.exec("deployment/kept", "redis-l2", append([]string{"redis-cli", "-h", "kept." + e.namespace + ".svc.cluster.local"}, args...)...)
}

// storageIs waits for what the backend says of its storage.
func (e *env) storageIs(status, reason, detail string) {
	e.t.Helper()
	if message := e.condition("cachebackend/kept", "RemoteStorageReady", status, reason); !strings.HasPrefix(message, detail+": ") {
		e.t.Errorf("RemoteStorageReady says %q, expected %s", message, detail)
	}
}

func TestEnginesOffloadToAServerInTheirPodAndAManagedRedis(t *testing.T) {
	e := newEnv(t, restricted)
	e.shareRelease()
	e.changeRelease("--set=adapters.enabled=true")
	e.importRedis()
	lmcache := e.importLMCache()
	withRedis := func(image string) string {
		return strings.NewReplacer("LMCACHE", lmcache, "REDIS", image).Replace(offloadingYAML)
	}
	e.kubectl("create", "secret", "generic", "redis", "--from-literal=password=one of the test")
	e.eventually("the webhook for backends", func() error {
		_, err := e.try(withRedis("ic.test/absent:none"), "apply", "-f", "-")
		return err
	})
	t.Run("the storage starts", func(t *testing.T) {
		e := e.sub(t)
		e.storageIs("Unknown", "RemoteStoragePending", "RolloutInProgress")
		started := time.Now()
		e.apply(withRedis(redisImage))
		e.storageIs("True", "RemoteStorageReady", "BackendReady")
		t.Logf("ready %s after it was given an image that exists", time.Since(started).Round(100*time.Millisecond))
		for command, want := range map[string]string{
			"ping":                        "PONG",
			"config get maxmemory":        "maxmemory\n83886080",
			"config get maxmemory-policy": "maxmemory-policy\nallkeys-lru",
			"config get save":             "save",
		} {
			if output, err := e.redis(strings.Fields(command)...); err != nil || strings.TrimSpace(output) != want {
				t.Errorf("%s: %q, %v", command, output, err)
			}
		}
		if output, err := e.redis("--no-auth-warning", "-a", "another", "ping"); err == nil && strings.Contains(output, "PONG") {
			t.Error("another password does as well")
		}
	})
	t.Run("an engine has its server", func(t *testing.T) {
		e := e.sub(t)
		e.startReaders()
		started := time.Now()
		e.apply(enginePod("kept-0", "kept"))
		e.waitFor("pod/kept-0", "Ready")
		ready := time.Since(started)
		e.condition("cachebackend/kept", "ConnectorReady", "True", "ConnectorReady")
		prompt := longPrompt("kept")
		e.prompt("kept-0", prompt)
		e.matched(prompt, "kept-0")
		e.condition("cachebackend/kept", "Ready", "True", "KVEventsObserved")
		t.Logf("the engine was ready %s after its creation", ready.Round(100*time.Millisecond))

		engine, _ := e.containerState(e.namespace, "kept-0", "vllm")
		again := e.kill(e.namespace, "kept-0", "lmcache-mp-server")
		e.waitFor("pod/kept-0", "Ready")
		e.condition("cachebackend/kept", "ConnectorReady", "True", "ConnectorReady")
		if now, _ := e.containerState(e.namespace, "kept-0", "vllm"); now != engine {
			t.Error("the engine ended with its server")
		}
		t.Logf("the server was started again %s after it was killed", again.Round(100*time.Millisecond))
	})
	t.Run("the storage fails", func(t *testing.T) {
		e := e.sub(t)
		e.kubectl("scale", "deployment/kept", "--replicas=0")
		e.storageIs("False", "RemoteStorageUnavailable", "ScaledToZero")
		e.kubectl("scale", "deployment/kept", "--replicas=1")
		e.storageIs("True", "RemoteStorageReady", "BackendReady")
		e.kubectl("delete", "secret", "redis")
		e.kubectl("delete", "pod", "-l", "app.kubernetes.io/instance=kept")
		e.storageIs("False", "RemoteStorageUnavailable", "ReplicasUnavailable")
		e.waitFor("pod/kept-0", "Ready")
		e.kubectl("create", "secret", "generic", "redis", "--from-literal=password=another")
		e.storageIs("True", "RemoteStorageReady", "BackendReady")
	})
	t.Run("the backend goes", func(t *testing.T) {
		e := e.sub(t)
		e.kubectl("delete", "cachebackend", "kept")
		e.eventually("nothing left of it but its engine", func() error {
			left, err := e.try("", "get", "deployments,services,networkpolicies,pods", "-o", "name")
			if names := strings.Fields(left); err == nil && strings.Join(names, " ") != "pod/client pod/kept-0" {
				err = fmt.Errorf("left are %q", names)
			}
			return err
		})
	})
}
