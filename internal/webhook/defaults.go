// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/storage"
)

const defaultFirstEventTimeout = 5 * time.Minute

// defaultBackends fills in CacheBackends and adds nothing else to them, so that
// the schema still sees what is missing. One that cannot be read is left to the
// schema, which names the field.
func defaultBackends(_ context.Context, request admission.Request) admission.Response {
	var fields struct {
		Spec map[string]json.RawMessage `json:"spec"`
	}
	before := &v1alpha1.CacheBackend{}
	if json.Unmarshal(request.Object.Raw, &fields) != nil || fields.Spec == nil || json.Unmarshal(request.Object.Raw, before) != nil {
		return admission.Allowed("")
	}
	after := before.DeepCopy()
	defaultBackend(after)
	old, err := json.Marshal(before)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	current, err := json.Marshal(after)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(old, current)
}

// defaultNothing is for kinds whose schema has every default.
func defaultNothing(context.Context, admission.Request) admission.Response {
	return admission.Allowed("")
}

// defaultBackend fills in what the schema's defaults leave out because their
// parent is missing.
func defaultBackend(b *v1alpha1.CacheBackend) {
	spec := &b.Spec
	if spec.Type == "" {
		spec.Type = v1alpha1.BackendLMCache
	}
	if spec.Integration == nil {
		spec.Integration = &v1alpha1.BackendIntegration{}
	}
	if spec.Integration.Mode == "" {
		spec.Integration.Mode = v1alpha1.ModeOffload
	}
	if spec.Integration.Role == "" {
		spec.Integration.Role = v1alpha1.RoleReadWrite
	}
	if spec.Integration.FailOpen == nil {
		open := true
		spec.Integration.FailOpen = &open
	}
	if spec.Observation == nil {
		spec.Observation = &v1alpha1.BackendObservation{}
	}
	if spec.Observation.FirstEventTimeout == nil {
		spec.Observation.FirstEventTimeout = &metav1.Duration{Duration: defaultFirstEventTimeout}
	}
	if remote := spec.RemoteStorage; remote != nil && remote.Provider == v1alpha1.ProviderRedis && remote.Ownership == v1alpha1.OwnershipManaged {
		if remote.Redis == nil {
			remote.Redis = &v1alpha1.RedisSpec{}
		}
		if remote.Redis.Image == "" {
			remote.Redis.Image = storage.DefaultRedisImage
		}
	}
	if events := spec.Observation.KVEvents; events != nil && events.Transport == "" {
		events.Transport = v1alpha1.TransportWildcard
		if events.Inject {
			events.Transport = v1alpha1.TransportLoopback
		}
	}
}
