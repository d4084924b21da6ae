// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reasonSources are the packages whose constants are the reasons below.
var reasonSources = []string{"internal/controller", "internal/inject", "internal/propagate", "internal/adapter", "internal/nodelocal", "internal/kernelcheck"}

// reasonName matches constants that become reasons of conditions or events, or
// codes.
var reasonName = regexp.MustCompile(`^(reason|Reason|event|code|Warn)[A-Z]`)

// provenReason is one thing the controller or the webhooks say, the test that
// causes it, and the page that explains it.
type provenReason struct {
	about string // kind and condition, kind and event, or what becomes of a pod
	value string // status/reason, type and reason of an event, or the code
	test  string // package directory and function
}

const (
	inController = "internal/controller Test"
	inInject     = "internal/inject Test"
)

// proven lists every reason of the conditions and every reason code.
var proven = []provenReason{
	{"CacheBackend Ready", "True/EventsOnlyActive", inController + "BackendRequireKVEventsAnnotation"},
	{"CacheBackend Ready", "True/KVEventsObserved", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend Ready", "False/AwaitingFirstKVEvent", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend Ready", "False/NoKVEventsObserved", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend Ready", "False/Unsupported", inController + "BackendUnsupported"},
	{"CacheBackend Ready", "False/ProbeIngestFailed", inController + "ProbeVerdicts"},
	{"CacheBackend Ready", "False/ProbeRoutingFailed", inController + "ProbeVerdicts"},
	{"CacheBackend Ready", "False/ProbeT2Failed", inController + "ProbeVerdicts"},
	{"CacheBackend Ready", "False/ProbeGRPCFailed", inController + "ProbeVerdicts"},
	{"CacheBackend Ready", "False/ProbeError", inController + "ProbeVerdicts"},
	{"CacheBackend Progressing", "True/AwaitingFirstKVEvent", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend Progressing", "False/Synced", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend Progressing", "False/NoKVEventsObserved", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend Degraded", "True/NoKVEventsObserved", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend Degraded", "False/NotDegraded", inController + "BackendWaitsForTheFirstEvent"},
	{"CacheBackend FunctionalProbeOK", "True/ProbeOK", inController + "ProbeVerdicts"},
	{"CacheBackend FunctionalProbeOK", "True/ProbeBypassed", inController + "ProbeBypassed"},
	{"CacheBackend FunctionalProbeOK", "False/ProbeIngestFailed", inController + "ProbeVerdicts"},
	{"CacheBackend FunctionalProbeOK", "False/ProbeRoutingFailed", inController + "ProbeVerdicts"},
	{"CacheBackend FunctionalProbeOK", "False/ProbeT2Failed", inController + "ProbeVerdicts"},
	{"CacheBackend FunctionalProbeOK", "False/ProbeGRPCFailed", inController + "ProbeVerdicts"},
	{"CacheBackend FunctionalProbeOK", "False/ProbeError", inController + "ProbeVerdicts"},
	{"CacheBackend FunctionalProbeOK", "Unknown/ProbeError", inController + "ProbeVerdicts"},
	{"CacheBackend InjectionHealthy", "True/AllInjected", inController + "BackendInjectionHealthy"},
	{"CacheBackend InjectionHealthy", "False/PodsSkipped", inController + "BackendInjectionHealthy"},
	{"CacheBackend InjectionHealthy", "False/PodsUnseen", inController + "BackendInjectionHealthy"},
	{"CacheBackend InjectionHealthy", "False/StaleInjection", inController + "BackendInjectionHealthy"},
	{"CacheBackend InjectionHealthy", "False/SidecarUnavailable", inController + "BlockedPodsAreUnblocked"},
	{"CacheBackend InjectionHealthy", "False/BreakerOpen", inController + "BreakerOpens"},
	{"CacheBackend InjectionHealthy", "Unknown/NoEnginePods", inController + "BackendInjectionHealthy"},
	{"CacheBackend ReplicasReporting", "True/AllReporting", inController + "BackendReplicasReporting"},
	{"CacheBackend ReplicasReporting", "False/SomeSilent", inController + "BackendReplicasReporting"},
	{"CacheBackend ReplicasReporting", "Unknown/NoEnginePods", inController + "BackendReplicasReporting"},

	{"CachePolicy Accepted", "True/Accepted", inController + "PushReachesEveryServer"},
	{"CachePolicy Accepted", "False/Shadowed", inController + "ShadowedResourcesSayWhoWins"},
	{"CachePolicy Accepted", "False/InvalidRoutingFloor", inController + "WhatNoDefinitionKeptOutIsNotAccepted"},
	{"CachePolicy Programmed", "True/Programmed", inController + "PushReachesEveryServer"},
	{"CachePolicy Programmed", "False/PushFailed", inController + "ProgrammedReasons"},
	{"CachePolicy Programmed", "False/Rejected", inController + "ProgrammedReasons"},
	{"CachePolicy Programmed", "False/TooLarge", inController + "ProgrammedReasons"},
	{"CachePolicy Programmed", "Unknown/NoServers", inController + "ProgrammedReasons"},
	{"CachePolicy Programmed", "Unknown/NotEchoed", inController + "ProgrammedReasons"},
	{"CachePolicy Programmed", "False/NotEffective", inController + "ShadowedResourcesSayWhoWins"},
	{"CacheTenant Programmed", "True/NoQuota", inController + "ShadowedResourcesSayWhoWins"},
	{"CacheTenant Programmed", "False/NotEffective", inController + "ShadowedResourcesSayWhoWins"},
	{"CacheTenant Ready", "True/Observed", inController + "CacheTenantStatus"},
	{"CacheTenant Ready", "False/DuplicateTenantID", inController + "CacheTenantStatus"},
	{"CacheTenant QuotaExceeded", "True/OverEntryBudget", inController + "CacheTenantStatus"},
	{"CacheTenant QuotaExceeded", "False/WithinBudget", inController + "CacheTenantStatus"},
	{"CacheTenant QuotaExceeded", "False/NoQuota", inController + "CacheTenantStatus"},
	{"CacheTenant QuotaExceeded", "False/NotEffective", inController + "CacheTenantStatus"},

	{"PromptTemplate Accepted", "True/Accepted", inController + "EnvtestVerdicts"},
	{"PromptTemplate Accepted", "False/BadPlaceholder", inController + "EnvtestVerdicts"},
	{"PromptTemplate Accepted", "False/UndeclaredSlot", inController + "EnvtestVerdicts"},
	{"PromptTemplate Accepted", "False/BodyTooLarge", inController + "EnvtestVerdicts"},
	{"PromptTemplate Accepted", "False/BadSlot", inController + "WhatNoDefinitionKeptOutIsNotAccepted"},
	{"PromptTemplate StablePrefix", "True/StablePrefix", inController + "EnvtestVerdicts"},
	{"PromptTemplate StablePrefix", "False/MutableBeforeStable", inController + "EnvtestVerdicts"},
	{"PromptTemplate Programmed", "False/NotEffective", inController + "EnvtestVerdicts"},

	{"PDTopology Accepted", "True/Accepted", inController + "TopologyConditions"},
	{"PDTopology Accepted", "False/DuplicatePool", inController + "EnvtestVerdicts"},
	{"PDTopology Accepted", "False/UnknownAcceleratorType", inController + "EnvtestVerdicts"},
	{"PDTopology Accepted", "False/EmptySelector", inController + "EnvtestVerdicts"},
	{"PDTopology Accepted", "False/OverlappingPools", inController + "EnvtestVerdicts"},
	{"PDTopology Resolved", "True/AllPoolsReady", inController + "TopologyConditions"},
	{"PDTopology Resolved", "False/PoolEmpty", inController + "EnvtestVerdicts"},
	{"PDTopology Resolved", "False/BelowReplicas", inController + "TopologyConditions"},
	{"PDTopology Programmed", "False/NotEffective", inController + "TopologyConditions"},

	{"skipped pod", "skip-inject-annotation", inInject + "Decisions"},
	{"skipped pod", "subscriber-image-unset", inInject + "Reasons"},
	{"skipped pod", "model-id-unset", inInject + "Reasons"},
	{"skipped pod", "sidecar-present", inInject + "Reasons"},
	{"skipped pod", "adapter-unsupported", inInject + "Reasons"},
	{"skipped pod", "binding-unsupported", inInject + "Reasons"},
	{"skipped pod", "engine-container-not-found", inInject + "Reasons"},
	{"skipped pod", "endpoint-unresolved", inInject + "StoragesThatCannotBeUsed"},
	{"skipped pod", "engine-args-conflict", inInject + "TierPreconditions"},
	{"skipped pod", "reserved-name-conflict", inInject + "TierPreconditions"},
	{"skipped pod", "parallelism-unsupported", inInject + "TierPreconditions"},
	{"skipped pod", "page-size-missing", inInject + "TierPreconditions"},
	{"skipped pod", "page-size-mismatch", inInject + "TierPreconditions"},
	{"skipped pod", "shm-conflict", inInject + "TierPreconditions"},
	{"CacheBackend Ready", "False/EngineKernelDegraded", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend EngineKernelsHealthy", "True/KernelsHealthy", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend EngineKernelsHealthy", "False/KernelLoadFailed", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend EngineKernelsHealthy", "Unknown/KernelCheckError", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend EngineKernelsHealthy", "Unknown/KernelCheckPending", inController + "EnvtestOffloadVerdicts"},
	{"CacheBackend ConnectorReady", "False/NodeLocalServerPoolPending", inController + "NodeServersFollowTheEngines"},
	{"CacheBackend ConnectorReady", "False/EngineSchedulingPending", inController + "NodeServersFollowTheEngines"},
	{"CacheBackend ConnectorReady", "False/NodeLocalNameConflict", inController + "NodeServersNameWhatIsInTheirWay"},
	{"CacheBackend ConnectorReady", "False/NodeLocalServerRejected", inController + "NodeServersNameWhoRefusesThem"},
	{"CacheBackend ConnectorReady", "False/NodeLocalHostPortConflict", inController + "NodeServersReportPortsCrowdsAndCopies"},
	{"CacheBackend ConnectorReady", "False/NodeLocalWorkerCapacityExceeded", inController + "NodeServersReportPortsCrowdsAndCopies"},
	{"CacheBackend ConnectorReady", "False/AmbiguousNodeLocalServers", inController + "NodeServersReportPortsCrowdsAndCopies"},
	{"CacheBackend ConnectorReady", "False/NodeLocalServerOutdated", inController + "NodeServersOfAnotherConfigurationWaitForTheirEngines"},
	{"skipped pod", "pod-security", inInject + "PodSecurityKeepsNodeFoldersOut"},
	{"skipped pod", "os-unsupported", inInject + "Reasons"},
	{"skipped pod", "breaker-open", inInject + "BreakerHoldsThePublisherBack"},
	{"skipped pod", "predates-backend", inController + "UnseenPodsAreExplainedOnce"},
	{"skipped pod", "namespace-excluded", inController + "BackendInjectionHealthy"},
	{"failed pod", "webhook-not-called", inController + "UnseenPodsAreExplainedOnce"},
	{"failed pod", "backend-lookup-failed", inInject + "Decisions"},
	{"failed pod", "internal-error", inInject + "Decisions"},
	{"denied pod", "ambiguous-backends", inInject + "Decisions"},
	{"passed pod", "no-backend", inInject + "Decisions"},
	{"injected pod", "kv-events-config-missing", inInject + "Warnings"},
	{"injected pod", "kv-events-disabled", inInject + "Warnings"},
	{"injected pod", "kv-events-config-unreadable", inInject + "Warnings"},
	{"injected pod", "engine-command-opaque", inInject + "Warnings"},
	{"injected pod", "prefix-caching-off", inInject + "Warnings"},
	{"injected pod", "page-size-one", inInject + "Warnings"},
	{"injected pod", "host-network", inInject + "Warnings"},
}

// parseGo reads the Go files of a directory, those of tests or the others.
func parseGo(t *testing.T, dir string, tests bool) (files []*ast.File, sources map[*ast.File][]byte, fset *token.FileSet) {
	t.Helper()
	fset, sources = token.NewFileSet(), map[*ast.File][]byte{}
	paths, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") != tests {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files, sources[file] = append(files, file), text
	}
	return files, sources, fset
}

// declaredReasons returns the names of the constants by value.
func declaredReasons(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	for _, dir := range reasonSources {
		files, _, _ := parseGo(t, dir, false)
		for _, file := range files {
			ast.Inspect(file, func(node ast.Node) bool {
				spec, ok := node.(*ast.ValueSpec)
				if !ok || len(spec.Values) != len(spec.Names) {
					return true
				}
				for i, name := range spec.Names {
					literal, ok := spec.Values[i].(*ast.BasicLit)
					if !ok || literal.Kind != token.STRING || !reasonName.MatchString(name.Name) {
						continue
					}
					value, err := strconv.Unquote(literal.Value)
					if err != nil {
						t.Fatal(err)
					}
					names[value] = append(names[value], name.Name)
				}
				return true
			})
		}
	}
	return names
}

// testBodies returns the text of every function of a package's tests.
func testBodies(t *testing.T, dir string) map[string]string {
	t.Helper()
	bodies := map[string]string{}
	files, sources, fset := parseGo(t, dir, true)
	for _, file := range files {
		for _, declaration := range file.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil {
				bodies[f.Name.Name] = string(sources[file][fset.Position(f.Pos()).Offset:fset.Position(f.End()).Offset])
			}
		}
	}
	return bodies
}

// Whatever a condition or a pod may say has a test that makes it say so, and a
// place in the docs.
func TestEveryReasonIsCausedAndExplained(t *testing.T) {
	names := declaredReasons(t)
	bodies := map[string]map[string]string{}
	seen := map[string]bool{}
	pages := ""
	for _, page := range []string{"controller.md", "injection.md", "adapters.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		pages += string(text)
	}
	for _, p := range slices.Concat(proven, provenOfStorage, provenEvents) {
		reason := p.value[strings.LastIndexAny(p.value, "/ ")+1:]
		seen[reason] = true
		if names[reason] == nil {
			t.Errorf("%s: no constant is %q", p.about, reason)
		}
		if !strings.Contains(pages, "`"+reason+"`") {
			t.Errorf("%s: docs/controller.md, docs/injection.md and docs/adapters.md do not explain `%s`", p.about, reason)
		}
		dir, test, _ := strings.Cut(p.test, " ")
		if bodies[dir] == nil {
			bodies[dir] = testBodies(t, dir)
		}
		body, ok := bodies[dir][test]
		if !ok {
			t.Errorf("%s: %s has no %s", p.about, dir, test)
			continue
		}
		found := strings.Contains(body, p.value)
		for _, name := range names[reason] {
			found = found || regexp.MustCompile(`\b`+name+`\b`).MatchString(body)
		}
		if kind, condition, _ := strings.Cut(p.about, " "); kind == "CacheBackend" && condition != "event" {
			found = found && regexp.MustCompile(`\b`+condition+`\b`).MatchString(body)
		}
		if !found {
			t.Errorf("%s: %s in %s does not ask for %s", p.about, test, dir, p.value)
		}
	}
	for reason, constants := range names {
		if !seen[reason] {
			t.Errorf("%s is said by nobody that a test knows: add a line to proven in test/house/reasons_test.go", constants[0])
		}
	}
}
