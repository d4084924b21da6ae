// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

func TestCallsAreAsManyAsTheAPIServerTakes(t *testing.T) {
	for name, tc := range map[string]struct {
		config rest.Config
		want   float32
	}{
		"as pods and kubeconfigs give it": {rest.Config{}, -1},
		"a limit of the caller's":         {rest.Config{QPS: 7}, 7},
		"a limiter of the caller's":       {rest.Config{RateLimiter: flowcontrol.NewFakeAlwaysRateLimiter()}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := unhurried(&tc.config); got.QPS != tc.want {
				t.Errorf("QPS is %v, want %v", got.QPS, tc.want)
			}
		})
	}
}
