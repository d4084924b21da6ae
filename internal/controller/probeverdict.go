// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/inferencecache/inference-cache/api/v1alpha1"
	"github.com/inferencecache/inference-cache/internal/controlclient"
)

// testAnswer is what one server said to a self-test.
type testAnswer struct {
	server string
	result *controlclient.ProbeResult
	err    error // the call itself failed
	face   error // the gRPC face did
}

// testResult is the verdict over all servers. It never changes.
type testResult struct {
	condition
	at time.Time
}

// answered is false when the test could not be made.
func (r *testResult) answered() bool { return r.status != metav1.ConditionUnknown }

// stage is one step of the self-test as its server reports it.
type stage struct {
	name, failed string
	outcome      func(*controlclient.ProbeResult) controlclient.StageOutcome
	maySkip      bool
}

// stages in their order. Only the last has nothing to do for some backends.
func stages() []stage {
	return []stage{
		{"ingest", reasonProbeIngestFailed, func(r *controlclient.ProbeResult) controlclient.StageOutcome { return r.Ingest }, false},
		{"routing", reasonProbeRoutingFailed, func(r *controlclient.ProbeResult) controlclient.StageOutcome { return r.Routing }, false},
		{"t2", reasonProbeT2Failed, func(r *controlclient.ProbeResult) controlclient.StageOutcome { return r.T2 }, true},
	}
}

// passed says whether an outcome lets the test go on.
func (s stage) passed(o controlclient.StageOutcome) bool {
	return o == controlclient.StageOK || o == controlclient.StageSkipped && s.maySkip
}

func (a testAnswer) stagesPassed() bool {
	for _, s := range stages() {
		if !s.passed(s.outcome(a.result)) {
			return false
		}
	}
	return true
}

// summarise gives the worst outcome of each stage over all servers, in the
// order of stages. A failure anywhere weighs more than a call that failed.
func summarise(answers []testAnswer, discovery error) *testResult {
	verdict := func(status metav1.ConditionStatus, reason, message string) *testResult {
		return &testResult{condition: condition{v1alpha1.ConditionFunctionalProbeOK, reason, message, status}}
	}
	for _, s := range stages() {
		for _, a := range answers {
			if a.err == nil && s.outcome(a.result) == controlclient.StageFailed {
				return verdict(metav1.ConditionFalse, s.failed, fmt.Sprintf("%s: %s: %s", a.server, s.name, controlclient.Line(a.result.Message(s.name))))
			}
		}
	}
	for _, s := range stages() {
		for _, a := range answers {
			if a.err == nil && !s.passed(s.outcome(a.result)) {
				return verdict(metav1.ConditionFalse, reasonProbeError,
					fmt.Sprintf("%s: %s: unexpected outcome %.32q", a.server, s.name, s.outcome(a.result)))
			}
		}
	}
	for _, a := range answers {
		if a.face != nil {
			return verdict(metav1.ConditionFalse, reasonProbeGRPCFailed, fmt.Sprintf("%s: grpc: %s", a.server, controlclient.Line(a.face.Error())))
		}
	}
	for _, a := range answers {
		if a.err != nil {
			return verdict(metav1.ConditionUnknown, reasonProbeError, fmt.Sprintf("%s: %v", a.server, a.err))
		}
	}
	switch {
	case discovery != nil:
		return verdict(metav1.ConditionUnknown, reasonProbeError, discovery.Error())
	case len(answers) == 0:
		return verdict(metav1.ConditionUnknown, reasonProbeError, "no server was found")
	}
	return verdict(metav1.ConditionTrue, reasonProbeOK, fmt.Sprintf("passed on %d of %d servers", len(answers), len(answers)))
}
