// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/storage"
)

const gpuResource corev1.ResourceName = "nvidia.com/gpu"

// checkTiers judges where the engines' blocks go.
func checkTiers(b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	errs = append(errs, checkWhich(spec, b)...)
	if b.Spec.LMCache != nil {
		errs = append(errs, checkLMCache(spec.Child("lmCache"), b)...)
	}
	if b.Spec.RemoteStorage != nil {
		errs = append(errs, checkRemoteStorage(spec.Child("remoteStorage"), b)...)
	}
	if h := b.Spec.HiCache; h != nil && h.Ratio != nil {
		// The engine reads decimals only, strconv also hexadecimal.
		ratio, err := strconv.ParseFloat(*h.Ratio, 64)
		if err != nil || strings.ContainsAny(*h.Ratio, "xX") || math.IsInf(ratio, 0) || !(ratio > 0) {
			errs = append(errs, field.Invalid(spec.Child("hiCache", "ratio"), *h.Ratio, "a finite number above 0 is expected"))
		}
	}
	return errs
}

// checkWhich wants the tiers that go with type and mode, and no others.
func checkWhich(spec *field.Path, b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	kind, watches := adapter.Type(b), adapter.WatchesOnly(b)
	offloads := kind == v1alpha1.BackendLMCache && !watches
	switch {
	case offloads && b.Spec.LMCache == nil:
		errs = append(errs, field.Required(spec.Child("lmCache"), "type LMCache with mode Offload needs its servers"))
	case !offloads && b.Spec.LMCache != nil:
		errs = append(errs, field.Forbidden(spec.Child("lmCache"), "only type LMCache with mode Offload has servers"))
	}
	if !offloads && b.Spec.RemoteStorage != nil {
		errs = append(errs, field.Forbidden(spec.Child("remoteStorage"), "only type LMCache with mode Offload has a storage behind it"))
	}
	hi := kind == v1alpha1.BackendSGLangHiCache
	switch {
	case hi && b.Spec.HiCache == nil:
		errs = append(errs, field.Required(spec.Child("hiCache"), "type SGLangHiCache needs a size or a ratio"))
	case !hi && b.Spec.HiCache != nil:
		errs = append(errs, field.Forbidden(spec.Child("hiCache"), "only type SGLangHiCache has it"))
	}
	nodes := b.Spec.LMCache != nil && b.Spec.LMCache.Topology == v1alpha1.TopologyNodeLocal
	if (hi || nodes) && domainOf(b) == "" {
		errs = append(errs, field.Required(spec.Child("engineSelector"), "the engines are found by it"))
	}
	return errs
}

func checkLMCache(path *field.Path, b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	if p := b.Spec.LMCache.PodLocal; p != nil {
		at := path.Child("podLocal", "server")
		errs = append(errs, checkServer(at, p.Server.L1Capacity, &p.Server.Resources)...)
		errs = append(errs, checkServerPort(at.Child("port"), p.Server.Port, b)...)
	}
	if n := b.Spec.LMCache.NodeLocal; n != nil {
		at := path.Child("nodeLocal", "server")
		errs = append(errs, checkServer(at, n.Server.L1Capacity, &n.Server.Resources)...)
		if _, ok := n.Server.Resources.Limits[gpuResource]; ok {
			errs = append(errs, field.Forbidden(at.Child("resources", "limits").Key(string(gpuResource)), "the accelerators belong to the engines"))
		}
		if _, ok := n.Server.Resources.Requests[gpuResource]; ok {
			errs = append(errs, field.Forbidden(at.Child("resources", "requests").Key(string(gpuResource)), "the accelerators belong to the engines"))
		}
		if n.Scheduling != nil {
			errs = append(errs, checkScheduling(path.Child("nodeLocal", "scheduling"), n.Scheduling)...)
		}
	}
	return errs
}

// checkServer wants a server to have cpu, and memory beyond its blocks.
func checkServer(path *field.Path, l1 resource.Quantity, r *corev1.ResourceRequirements) (errs field.ErrorList) {
	at := path.Child("resources")
	errs = append(errs, checkResources(at, r)...)
	if cpu := r.Requests[corev1.ResourceCPU]; cpu.Sign() <= 0 {
		errs = append(errs, field.Invalid(at.Child("requests").Key("cpu"), cpu.String(), "must be above 0"))
	}
	needed := adapter.ServerMemory(l1)
	for _, side := range []struct {
		child string
		list  corev1.ResourceList
	}{{"requests", r.Requests}, {"limits", r.Limits}} {
		if memory := side.list[corev1.ResourceMemory]; memory.Cmp(needed) < 0 {
			errs = append(errs, field.Invalid(at.Child(side.child).Key("memory"), memory.String(),
				fmt.Sprintf("must be at least %s: l1Capacity and 1Gi", &needed)))
		}
	}
	return errs
}

// checkServerPort keeps a server in the pod off the ports of the events and of
// the publisher.
func checkServerPort(path *field.Path, port int32, b *v1alpha1.CacheBackend) field.ErrorList {
	switch {
	case port == adapter.PublisherPort:
		return field.ErrorList{field.Invalid(path, port, "is where the publisher has its metrics")}
	case adapter.IsEventPort(b, port):
		return field.ErrorList{field.Invalid(path, port, "is a port of spec.observation.kvEvents")}
	}
	return nil
}

func checkScheduling(path *field.Path, s *v1alpha1.PodScheduling) (errs field.ErrorList) {
	name := func(at *field.Path, value string) {
		if value == "" {
			return
		}
		for _, fault := range validation.IsDNS1123Subdomain(value) {
			errs = append(errs, field.Invalid(at, value, fault))
		}
	}
	for i, secret := range s.ImagePullSecrets {
		name(path.Child("imagePullSecrets").Index(i).Child("name"), secret.Name)
	}
	name(path.Child("serviceAccountName"), s.ServiceAccountName)
	name(path.Child("priorityClassName"), s.PriorityClassName)
	name(path.Child("schedulerName"), s.SchedulerName)
	if s.RuntimeClassName != nil {
		name(path.Child("runtimeClassName"), *s.RuntimeClassName)
	}
	return errs
}

func checkRemoteStorage(path *field.Path, b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	remote := b.Spec.RemoteStorage
	if remote.Ownership == v1alpha1.OwnershipExternal {
		if fault := storage.EndpointFault(remote.Endpoint); fault != "" {
			errs = append(errs, field.Invalid(path.Child("endpoint"), remote.Endpoint, fault))
		} else if other, crosses := foreignNamespace(remote.Endpoint, b.Namespace); crosses && !b.Spec.AllowCrossNamespace {
			errs = append(errs, field.Forbidden(path.Child("endpoint"),
				fmt.Sprintf("the Service of %s is in namespace %s; set spec.allowCrossNamespace to use it", remote.Endpoint, other)))
		}
	}
	if remote.Ownership == v1alpha1.OwnershipManaged {
		for _, fault := range validation.IsDNS1035Label(b.Name) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), b.Name, "the Service of a managed storage is called so: "+fault))
		}
	}
	if w := remote.Workload; w != nil {
		errs = append(errs, checkScheduling(path.Child("workload"), &w.PodScheduling)...)
	}
	if remote.Redis != nil {
		errs = append(errs, checkRedis(path.Child("redis"), b)...)
	}
	return errs
}

// foreignNamespace is the namespace of a Service that an endpoint names, where
// it is not the backend's own.
func foreignNamespace(endpoint, own string) (namespace string, foreign bool) {
	if _, after, found := strings.Cut(endpoint, "://"); found {
		endpoint = after
	}
	endpoint, _, _ = strings.Cut(endpoint, "/")
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		endpoint = host
	}
	host := strings.TrimSuffix(strings.TrimRight(strings.ToLower(endpoint), "."), ".cluster.local")
	labels := strings.Split(host, ".")
	if len(labels) < 3 || labels[len(labels)-1] != "svc" {
		return "", false
	}
	namespace = labels[len(labels)-2]
	return namespace, namespace != own
}

func checkRedis(path *field.Path, b *v1alpha1.CacheBackend) (errs field.ErrorList) {
	redis := b.Spec.RemoteStorage.Redis
	if redis.Resources != nil {
		errs = append(errs, checkResources(path.Child("resources"), redis.Resources)...)
	}
	if redis.Image != "" && strings.ContainsFunc(redis.Image, notPrinted) {
		errs = append(errs, field.Invalid(path.Child("image"), redis.Image, "an image without white space is expected"))
	}
	if redis.TLS != nil {
		errs = append(errs, field.Forbidden(path.Child("tls"), "the LMCache servers cannot speak TLS to Redis"))
	}
	if redis.Database != nil {
		errs = append(errs, field.Forbidden(path.Child("database"), "the LMCache servers use database 0"))
	}
	auth, at := redis.Authentication, path.Child("authentication")
	if auth == nil {
		return errs
	}
	if b.Spec.LMCache == nil {
		errs = append(errs, field.Forbidden(at, "only the servers of spec.lmCache take credentials"))
	}
	if auth.Username != nil {
		if b.Spec.RemoteStorage.Ownership != v1alpha1.OwnershipExternal {
			errs = append(errs, field.Forbidden(at.Child("username"), "a managed Redis has its default user only"))
		}
		errs = append(errs, checkSecret(at.Child("username"), auth.Username)...)
	}
	if auth.Password == nil {
		return append(errs, field.Required(at.Child("password"), "credentials have a password"))
	}
	return append(errs, checkSecret(at.Child("password"), auth.Password)...)
}

// checkSecret wants a reference that must resolve.
func checkSecret(path *field.Path, s *corev1.SecretKeySelector) (errs field.ErrorList) {
	errs = checkKey(path, s.Name, s.Key)
	if s.Optional != nil && *s.Optional {
		errs = append(errs, field.Forbidden(path.Child("optional"), "without the Secret nothing could be read"))
	}
	return errs
}
