// SPDX-License-Identifier: Apache-2.0

package nodelocal

import (
	"encoding/json"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/inferencecache/inference-cache/internal/commandline"
)

// Storage is what an LMCache server offloads to.
type Storage struct {
	// Protocol is how it is spoken to, Host and Port where it is.
	Protocol string `json:"protocol"`
	Host     string `json:"host"`
	Port     int32  `json:"port"`
	// Username and Password refer to Secrets; nil is none.
	Username *corev1.SecretKeySelector `json:"username,omitempty"`
	Password *corev1.SecretKeySelector `json:"password,omitempty"`
}

// Args are the arguments of an LMCache server about its storage; nil has none.
func (s *Storage) Args() []string {
	if s == nil {
		return nil
	}
	text, _ := json.Marshal(struct { // strings and a number cannot fail
		Host string `json:"host"`
		Port int32  `json:"port"`
		Type string `json:"type"`
	}{s.Host, s.Port, s.Protocol})
	return []string{"--l2-adapter", commandline.Escape(string(text))}
}

// Env gives an LMCache server the credentials of its storage; nil has none.
func (s *Storage) Env() (env []corev1.EnvVar) {
	if s == nil {
		return nil
	}
	for _, secret := range []struct {
		name string
		key  *corev1.SecretKeySelector
	}{{"LMCACHE_RESP_USERNAME", s.Username}, {"LMCACHE_RESP_PASSWORD", s.Password}} {
		if secret.key != nil {
			env = append(env, corev1.EnvVar{Name: secret.name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: secret.key.DeepCopy()}})
		}
	}
	return env
}

// Gibibytes is a size in units of 2^30 bytes as the shortest decimal.
func Gibibytes(size resource.Quantity) string {
	return strconv.FormatFloat(float64(size.Value())/(1<<30), 'f', -1, 64)
}
