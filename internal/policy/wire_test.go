// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func ptr[T any](v T) *T { return &v }

// everyField is a body as the public controller builds it.
const everyField = `{"version":7,"policies":[{"namespace":"team-a","evictionTTL":900000000000,"minimumPrefixTokens":32,` +
	`"minimumMatchedTokens":128,"routingFloorScore":5,"lookupTimeoutMs":25,"eviction":"lfu",` +
	`"strategy":{"enableChainMatching":true,"requireChain":false,"enableTenantHot":true},"affinityRouting":true}],` +
	`"tenants":[{"tenantID":"team-a","maxIndexEntries":100000,"isolationMode":"Fairness"}]}`

func TestDecodeSnapshot(t *testing.T) {
	one := func(d Declared) *Snapshot {
		d.Namespace = "a"
		return &Snapshot{Origin: Origin{Version: 7}, Policies: []Declared{d}}
	}
	for name, tc := range map[string]struct {
		body string
		want *Snapshot
	}{
		"every field": {everyField, &Snapshot{
			Origin: Origin{Version: 7},
			Policies: []Declared{{
				Namespace: "team-a", EvictionTTL: 15 * time.Minute, MinimumPrefixTokens: 32, MinimumMatchedTokens: 128,
				RoutingFloorScore: ptr(float32(5)), LookupTimeoutMillis: 25, Eviction: "lfu",
				EnableChainMatching: ptr(true), RequireChain: ptr(false), EnableTenantHot: ptr(true), AffinityRouting: ptr(true),
			}},
			Quotas: []Quota{{Tenant: "team-a", MaxKeys: 100000, IsolationMode: "Fairness"}},
		}},
		"no field": {`{"version":7,"policies":[{"namespace":"a"}]}`, one(Declared{})},
		"zeros and false": {
			`{"version":7,"policies":[{"namespace":"a","evictionTTL":0,"minimumPrefixTokens":0,"minimumMatchedTokens":0,` +
				`"routingFloorScore":0,"lookupTimeoutMs":0,"eviction":"","strategy":{"enableChainMatching":false,` +
				`"requireChain":false,"enableTenantHot":false},"affinityRouting":false}]}`,
			one(Declared{
				RoutingFloorScore: ptr(float32(0)), EnableChainMatching: ptr(false), RequireChain: ptr(false),
				EnableTenantHot: ptr(false), AffinityRouting: ptr(false),
			}),
		},
		"null is absent": {
			`{"version":7,"tenants":null,"policies":[null,{"namespace":"a","evictionTTL":null,"routingFloorScore":null,` +
				`"strategy":null,"affinityRouting":null,"eviction":null}]}`,
			one(Declared{}),
		},
		"members of strategy may be null": {
			`{"version":7,"policies":[{"namespace":"a","strategy":{"requireChain":null,"enableTenantHot":false}}]}`,
			one(Declared{EnableTenantHot: ptr(false)}),
		},
		"extremes": {
			`{"version":7,"policies":[{"namespace":"a","evictionTTL":-9223372036854775808,"minimumPrefixTokens":2147483647,` +
				`"minimumMatchedTokens":-2147483648,"routingFloorScore":3.4028234e38}]}`,
			one(Declared{
				EvictionTTL: -1 << 63, MinimumPrefixTokens: 1<<31 - 1, MinimumMatchedTokens: -1 << 31,
				RoutingFloorScore: ptr(float32(3.4028234e38)),
			}),
		},
		"white space and escapes": {
			" \n{ \"version\" : 7 , \"policies\" : [ { \"n\\u0061mespace\" : \"\\u0061\" } ] }\n ", one(Declared{}),
		},
		"nothing":              {`{"version":7}`, &Snapshot{Origin: Origin{Version: 7}}},
		"nothing, spelled out": {`{"version":7,"policies":[],"tenants":[]}`, &Snapshot{Origin: Origin{Version: 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeSnapshot([]byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			tc.want.Revision, tc.want.Bytes = Revision([]byte(tc.body)), len(tc.body)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("snapshot (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRevision(t *testing.T) {
	const want = "b1af69a7f08d9696baf715ebccc03bcb89b15103bef1adac3fa22fdbb2b94642"
	if got := Revision([]byte(`{"version":7,"policies":[]}`)); got != want {
		t.Errorf("revision %s, want %s", got, want)
	}
}

// TestDecodersRefuse gives bodies of extensions names that start with "ext".
func TestDecodersRefuse(t *testing.T) {
	policies := func(fields string) string { return `{"version":7,"policies":[{"namespace":"a",` + fields + `}]}` }
	extensions := func(fields string) string { return `{"version":1,"policies":[{"namespace":"a",` + fields + `}]}` }
	template := func(fields string) string {
		return `{"version":1,"templates":[{"namespace":"a","name":"t",` + fields + `}]}`
	}
	const snapshot, extension = "decode policy snapshot: ", "decode policy extensions: "
	for name, tc := range map[string]struct{ body, want string }{
		"nothing at all":            {"", snapshot + "invalid JSON at byte 0"},
		"no JSON":                   {"version: 7", snapshot + "invalid JSON at byte 0"},
		"another type":              {"[7]", snapshot + "expected an object"},
		"null":                      {"null", snapshot + "expected an object"},
		"an end too early":          {`{"version":7`, snapshot + "invalid JSON"},
		"a bracket behind":          {`{"version":7}]`, snapshot + "invalid JSON at byte 13: expected the end"},
		"a second value":            {`{"version":7}{"version":7}`, snapshot + "invalid JSON at byte 13"},
		"an unknown key":            {`{"version":7,"extra":1}`, snapshot + `unknown field "extra"`},
		"an unknown key inside":     {policies(`"ttl":1`), snapshot + `policies[0]: unknown field "ttl"`},
		"an unknown key deep down":  {policies(`"strategy":{"x":1}`), snapshot + `policies[0].strategy: unknown field "x"`},
		"an unknown tenant key":     {`{"version":7,"tenants":[{"tenantId":"a"}]}`, snapshot + `tenants[0]: unknown field "tenantId"`},
		"a key in another case":     {`{"Version":7}`, snapshot + `unknown field "Version"`},
		"a key twice":               {`{"version":7,"version":7}`, snapshot + "version: appears twice"},
		"a key twice inside":        {policies(`"namespace":"a"`), snapshot + "policies[0].namespace: appears twice"},
		"a key twice, once escaped": {`{"version":7,"\u0076ersion":7}`, snapshot + "version: appears twice"},
		"a duration as text":        {policies(`"evictionTTL":"15m"`), snapshot + "policies[0].evictionTTL: expected an integer"},
		"an exponent":               {policies(`"evictionTTL":9e11`), snapshot + "policies[0].evictionTTL: expected an integer"},
		"a fraction":                {policies(`"minimumPrefixTokens":1.0`), snapshot + "policies[0].minimumPrefixTokens: expected an integer"},
		"above int32":               {policies(`"lookupTimeoutMs":2147483648`), snapshot + "policies[0].lookupTimeoutMs: expected an integer"},
		"below int32":               {policies(`"minimumMatchedTokens":-2147483649`), snapshot + "policies[0].minimumMatchedTokens: expected an integer"},
		"above int64":               {policies(`"evictionTTL":9223372036854775808`), snapshot + "policies[0].evictionTTL: expected an integer"},
		"above float32":             {policies(`"routingFloorScore":1e39`), snapshot + "policies[0].routingFloorScore: expected a number"},
		"text for a float":          {policies(`"routingFloorScore":"0.1"`), snapshot + "policies[0].routingFloorScore: expected a number"},
		"text for a bool":           {policies(`"affinityRouting":"Enabled"`), snapshot + "policies[0].affinityRouting: expected true or false"},
		"a number for text":         {policies(`"eviction":1`), snapshot + "policies[0].eviction: expected a string"},
		"a list for an object":      {policies(`"strategy":[]`), snapshot + "policies[0].strategy: expected an object"},
		"an object for a list":      {`{"version":7,"policies":{}}`, snapshot + "policies: expected an array"},
		"a version as text":         {`{"version":"7"}`, snapshot + "version: expected an integer"},
		"a long key is cut":         {`{"` + strings.Repeat("k", 100) + `":1}`, snapshot + `unknown field "` + strings.Repeat("k", 64) + `"`},
		"an unknown key before the version": {
			`{"version":8,"policies":[{"namespace":"a","new":1}]}`, snapshot + `policies[0]: unknown field "new"`,
		},
		"version 0":       {`{}`, "unsupported policy snapshot version 0: expected 3 to 7"},
		"version 2":       {`{"version":2}`, "unsupported policy snapshot version 2: expected 3 to 7"},
		"version 8":       {`{"version":8}`, "unsupported policy snapshot version 8: expected 3 to 7"},
		"a negative one":  {`{"version":-7}`, "unsupported policy snapshot version -7: expected 3 to 7"},
		"version null":    {`{"version":null}`, "unsupported policy snapshot version 0: expected 3 to 7"},
		"ext: no version": {`{"revision":"x"}`, "unsupported policy extensions version 0: expected 1"},
		"ext: version 2":  {`{"version":2}`, "unsupported policy extensions version 2: expected 1"},
		"ext: an unknown hash": {
			extensions(`"affinityHash":"modulo"`), extension + `policies[0].affinityHash: expected one of "Modulo", "Rendezvous"`,
		},
		"ext: an unknown way with equal holders": {
			extensions(`"equalHolders":""`), extension + `policies[0].equalHolders: expected one of "Affinity", "Load"`,
		},
		"ext: a negative number of blocks": {extensions(`"affinitySeedBlocks":-1`), extension + "policies[0].affinitySeedBlocks: expected 0 to 4096"},
		"ext: more blocks than a seed has": {extensions(`"affinitySeedBlocks":4097`), extension + "policies[0].affinitySeedBlocks: expected 0 to 4096"},
		"ext: pressure above 1":            {extensions(`"affinityMaxPressure":1.1`), extension + "policies[0].affinityMaxPressure: expected 0 to 1"},
		"ext: a long revision":             {`{"version":1,"revision":"` + strings.Repeat("r", 65) + `"}`, extension + "revision: expected at most 64 bytes"},
		"ext: a revision with a line end":  {`{"version":1,"revision":"a\nb"}`, extension + "revision: expected visible ASCII"},
		"ext: a revision beyond ASCII":     {`{"version":1,"revision":"é"}`, extension + "revision: expected visible ASCII"},
		"ext: a long template":             {template(`"body":"` + strings.Repeat("x", 256<<10+1) + `"`), extension + "templates[0].body: expected at most 262144 bytes"},
		"ext: an unknown slot type":        {template(`"slots":[{"name":"s","type":"stable"}]`), extension + `templates[0].slots[0].type: expected one of "Mutable", "Stable"`},
		"ext: a slot without a name":       {template(`"slots":[{"type":"Stable"}]`), extension + "templates[0].slots[0]: expected a name and a type"},
		"ext: an unknown transport": {
			`{"version":1,"pdTopologies":[{"transport":"RDMA"}]}`,
			extension + `pdTopologies[0].transport: expected one of "", "Direct", "Mooncake", "NIXL"`,
		},
		"ext: a replica id that is no text": {`{"version":1,"pdTopologies":[{"prefill":["a",1]}]}`, extension + "pdTopologies[0].prefill[1]: expected a string"},
		"ext: an unknown key":               {template(`"text":"x"`), extension + `templates[0]: unknown field "text"`},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if strings.HasPrefix(name, "ext: ") {
				_, err = DecodeExtensions([]byte(tc.body))
			} else {
				_, err = DecodeSnapshot([]byte(tc.body))
			}
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Fatalf("error %v, want one that starts %q", err, tc.want)
			}
			if got, want := errors.Is(err, ErrVersion), strings.HasPrefix(tc.want, "unsupported"); got != want {
				t.Errorf("is ErrVersion: %v, want %v", got, want)
			}
			if got, want := errors.Is(err, ErrUnknownField), strings.Contains(tc.want, "unknown field"); got != want {
				t.Errorf("is ErrUnknownField: %v, want %v", got, want)
			}
		})
	}
}

// TestNormalization decodes one policy in each version, with a field absent,
// null and explicit.
func TestNormalization(t *testing.T) {
	yes, no := ptr(true), ptr(false)
	floor := func(f float32) *float32 { return &f }
	for version, want := range map[int]Declared{
		3: {
			MinimumMatchedTokens: 64, RoutingFloorScore: floor(.1), EnableChainMatching: yes, RequireChain: no,
			EnableTenantHot: yes, AffinityRouting: yes,
		},
		4: {RoutingFloorScore: floor(.1), EnableChainMatching: yes, RequireChain: no, EnableTenantHot: yes, AffinityRouting: yes},
		5: {EnableChainMatching: yes, RequireChain: no, EnableTenantHot: yes, AffinityRouting: yes},
		6: {AffinityRouting: yes},
		7: {},
	} {
		want.Namespace = "a"
		explicit := Declared{
			Namespace: "a", MinimumMatchedTokens: -1, RoutingFloorScore: floor(0), EnableChainMatching: no, RequireChain: yes,
			EnableTenantHot: no, AffinityRouting: no,
		}
		partial := want
		partial.EnableTenantHot = no
		zero := want
		for name, tc := range map[string]struct {
			fields string
			want   Declared
		}{
			"absent": {``, want},
			"null":   {`,"minimumMatchedTokens":null,"routingFloorScore":null,"strategy":null,"affinityRouting":null`, want},
			"explicit values": {`,"minimumMatchedTokens":-1,"routingFloorScore":0,"strategy":{"enableChainMatching":false,` +
				`"requireChain":true,"enableTenantHot":false},"affinityRouting":false`, explicit},
			"one member of strategy":  {`,"strategy":{"enableTenantHot":false}`, partial},
			"an explicit 0 as absent": {`,"minimumMatchedTokens":0`, zero},
		} {
			t.Run(fmt.Sprintf("v%d, %s", version, name), func(t *testing.T) {
				got, err := DecodeSnapshot(fmt.Appendf(nil, `{"version":%d,"policies":[{"namespace":"a"%s}]}`, version, tc.fields))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]Declared{tc.want}, got.Policies); diff != "" {
					t.Errorf("policies (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestDecodeExtensions(t *testing.T) {
	const body = `{"version":1,"revision":"r-1",` +
		`"policies":[{"namespace":"a","affinityHash":"Rendezvous","affinitySeedBlocks":4,"affinityMaxPressure":0.5,"equalHolders":"Load"},` +
		`{"namespace":"b","affinityHash":"Modulo","equalHolders":"Affinity"},null],` +
		`"templates":[{"namespace":"a","name":"t","body":"old"},{"namespace":"a","name":"t","body":"hi {{who}}",` +
		`"slots":[{"name":"who","type":"Mutable","required":true},{"name":"how","type":"Stable"},null]},{"name":"homeless"}],` +
		`"pdTopologies":[{"namespace":"a","name":"p","model":"m","prefill":["p1",null,"p2"],"decode":["d1"],"transport":"NIXL"},` +
		`{"namespace":"a","name":"q","transport":""},{"namespace":"a"}]}`
	got, err := DecodeExtensions([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := &ExtensionSet{
		Origin: Origin{Version: 1, Revision: "r-1", Bytes: len(body)},
		Policies: []NamespaceExtensions{
			{"a", Extensions{HashRendezvous, 4, .5, EqualHoldersLoad}},
			{"b", Extensions{}},
		},
		Templates: []Template{{"a", "t", "hi {{who}}", []Slot{{"who", SlotMutable, true}, {"how", SlotStable, false}}}},
		Topologies: []PDTopology{
			{"a", "p", "m", []string{"p1", "p2"}, []string{"d1"}, TransportNIXL},
			{"a", "q", "", nil, nil, TransportUnknown},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("extensions (-want +got):\n%s", diff)
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	for _, seed := range []string{everyField, `{"version":7}`, `{"version":3,"policies":[null,{"namespace":""}]}`, `{"version":8,"x":[{}]}`, `null`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		snapshot, err := DecodeSnapshot(body)
		if err != nil {
			if text := err.Error(); !strings.HasPrefix(text, "decode policy snapshot: ") && !strings.HasPrefix(text, "unsupported policy snapshot version ") {
				t.Fatalf("error %q", text)
			}
			return
		}
		view := NewView(0, snapshot, new(ExtensionSet))
		for _, declared := range snapshot.Policies {
			if e := view.For(declared.Namespace); e.TTLMillis <= 0 || e.RoutingFloorScore < 0 || e.MinimumMatchedTokens < 0 {
				t.Errorf("effective policy %v", e)
			}
		}
	})
}

func FuzzDecodeExtensions(f *testing.F) {
	f.Add([]byte(`{"version":1,"revision":"r","policies":[{"namespace":"a","affinityMaxPressure":0.5}]}`))
	f.Add([]byte(`{"version":1,"templates":[{"namespace":"a","name":"t","slots":[{"name":"s","type":"Stable"}]}]}`))
	f.Add([]byte(`{"version":1,"pdTopologies":[{"namespace":"a","name":"p","prefill":["x"],"transport":"NIXL"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		set, err := DecodeExtensions(body)
		if err != nil {
			return
		}
		for _, p := range set.Policies {
			if p.SeedBlocks < 0 || !(p.MaxPressure >= 0 && p.MaxPressure <= 1) {
				t.Errorf("extensions %v", p)
			}
		}
	})
}
