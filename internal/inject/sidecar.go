// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/adapter"
	"github.com/inferencecache/inference-cache/internal/commandline"
)

// Names of what injection adds to a pod.
const (
	SidecarName = "kvevent-subscriber"
	VolumeName  = "inference-cache-ingest"
	// MountPath holds token and ca.crt.
	MountPath = "/var/run/secrets/inferencecache.io/ingest-token"
	// CAConfigMap is the servers' authority, in every namespace with a backend.
	CAConfigMap = "inference-cache-server-ca"

	ingestAudience = "inferencecache.io/ingest"
	tokenSeconds   = 3600
	metricsPort    = adapter.PublisherPort
	metricsName    = "ic-metrics"
	nonRoot        = 65532
)

// Arguments that every injected publisher has.
const (
	replicaArgument = "--replica-id=$(POD_NAME)"
	tenantArgument  = "--tenant-id=$(POD_NAMESPACE)"
	podArgument     = "--pod-uid=$(POD_UID)"
	tokenArgument   = "--token-file=" + MountPath + "/token"
	stayArgument    = "--no-exit"
)

// renderVersion changes with what is rendered, so that pods of an older
// version show as stale.
const renderVersion = 1

// renderSidecar is the publisher beside one engine. It has no startup or
// readiness probe and never exits over its options: it must not hold the
// engine back.
func renderSidecar(spec *corev1.PodSpec, e engine, s sockets, backend *v1alpha1.CacheBackend, o Options) corev1.Container {
	c := corev1.Container{
		Name: SidecarName, Image: o.Image, Args: sidecarArgs(spec, e, s, backend, o),
		Env: []corev1.EnvVar{
			fieldVariable("POD_NAME", "metadata.name"), fieldVariable("POD_NAMESPACE", "metadata.namespace"), fieldVariable("POD_UID", "metadata.uid"),
		},
		Resources: sidecarResources(spec, observationOf(backend).Resources),
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: ptr(true), RunAsUser: ptr(int64(nonRoot)), RunAsGroup: ptr(int64(nonRoot)),
			AllowPrivilegeEscalation: ptr(false), ReadOnlyRootFilesystem: ptr(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: VolumeName, MountPath: MountPath, ReadOnly: true}},
	}
	if !spec.HostNetwork {
		c.Ports = []corev1.ContainerPort{{Name: metricsName, ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP}}
		c.LivenessProbe = &corev1.Probe{
			ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/livez", Port: intstr.FromInt32(metricsPort)}},
			TimeoutSeconds: 5, PeriodSeconds: 20, FailureThreshold: 6,
		}
	}
	if !o.OrdinaryContainer {
		c.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
	}
	return c
}

func fieldVariable(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func sidecarArgs(spec *corev1.PodSpec, e engine, s sockets, backend *v1alpha1.CacheBackend, o Options) []string {
	observation := observationOf(backend)
	args := []string{fmt.Sprintf("--engine-endpoint=tcp://127.0.0.1:%d", s.port)}
	for _, server := range o.Servers {
		args = append(args, "--server="+server)
	}
	args = append(args,
		replicaArgument, tenantArgument, "--model-id="+commandline.Escape(observation.ModelID),
		"--hash-scheme="+e.facts.HashScheme, "--engine-metrics-url="+metricsURL(e, observation.EngineMetrics),
	)
	if !adapter.WatchesOnly(backend) {
		args = append(args, "--ignore-block-removed=true")
	}
	args = append(args, s.args()...)
	if ranks := ranksOf(e, observation.KVEvents); ranks > 0 {
		args = append(args, fmt.Sprintf("--data-parallel-ranks=%d", ranks))
	}
	args = append(args, podArgument)
	if observation.KVEvents != nil {
		for _, name := range observation.KVEvents.LoRAAdapterNames {
			args = append(args, "--lora-adapter-names="+commandline.Escape(listItem(fmt.Sprintf("%d=%s", name.ID, name.Name))))
		}
	}
	args = append(args, o.credentials()...)
	listen := fmt.Sprintf(":%d", metricsPort)
	if spec.HostNetwork {
		listen = ""
	}
	return append(args, "--metrics-bind-address="+listen, stayArgument)
}

// args are the flags for everything about the sockets but the endpoint.
func (s sockets) args() []string {
	args := []string{"--engine-socket=connect"}
	if s.bind {
		args[0] = "--engine-socket=bind"
	}
	if s.replayPort != 0 {
		args = append(args, fmt.Sprintf("--replay-endpoint=tcp://127.0.0.1:%d", s.replayPort))
	}
	if s.topic != "" {
		args = append(args, "--topic="+commandline.Escape(s.topic))
	}
	return args
}

// credentials are the flags that a publisher is known to the servers by.
func (o Options) credentials() []string {
	args := []string{tokenArgument}
	if o.PlainText {
		return append(args, "--insecure-token-transport")
	}
	args = append(args, "--server-ca-file="+MountPath+"/ca.crt")
	if o.ServerName != "" {
		args = append(args, "--server-name="+o.ServerName)
	}
	return args
}

func metricsURL(e engine, m *v1alpha1.EngineMetricsSpec) string {
	port := e.httpPort()
	if m != nil && m.Port != nil {
		port = *m.Port
	}
	return fmt.Sprintf("http://127.0.0.1:%d%s", port, commandline.Escape(effectiveMetrics(m).Path))
}

func ranksOf(e engine, events *v1alpha1.KVEventsSpec) int32 {
	if events != nil && events.DataParallelRanks != nil {
		return *events.DataParallelRanks
	}
	return adapter.Ranks(e.Line)
}

// listItem quotes a text for a flag that takes lists separated by commas.
func listItem(text string) string {
	if !strings.ContainsAny(text, ",\"\r\n") {
		return text
	}
	return `"` + strings.ReplaceAll(text, `"`, `""`) + `"`
}

// ingestVolume is the pod's own token for the servers, and their authority. A
// map that is missing delays nothing.
func ingestVolume() corev1.Volume {
	return corev1.Volume{Name: VolumeName, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: ingestAudience, ExpirationSeconds: ptr(int64(tokenSeconds)), Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: CAConfigMap}, Optional: ptr(true),
				Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
		},
	}}}
}

func ptr[T any](v T) *T { return &v }
