// SPDX-License-Identifier: Apache-2.0

package standalone

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const fullConfig = `# every key
version: 1
listen: 127.0.0.1:8100
admin: 127.0.0.1:8180
grpc: 127.0.0.1:8190
tenant: team-a
engines:
  - url: http://127.0.0.1:8000
    replica: a
    runtime: vllm
    model: tiny
    events: tcp://127.0.0.1:5557
    replay: tcp://127.0.0.1:5600
    topic: kv
    ranks: 2
  - url: http://127.0.0.1:8001
    events: none
    role: prefill
routing:
  policy: hint
  lookupTimeout: 7ms
  exposeReplica: true
  pdMinUncached: 99
  pdPrefillTimeout: 20s
tokenizer:
  mode: render
  folders: [a=b]
  renderURL: http://127.0.0.1:8002
  timeout: 150ms
  parity: off
index:
  maxMemory: 512MiB
  maxEntries: 1000000
  ttl: 10m
log:
  format: text
  level: debug
`

func TestParseReadsEveryKey(t *testing.T) {
	got, err := Parse("up.yaml", []byte(fullConfig))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Version: 1, Listen: "127.0.0.1:8100", Admin: "127.0.0.1:8180", GRPC: "127.0.0.1:8190", Tenant: "team-a",
		Engines: []Engine{
			{URL: "http://127.0.0.1:8000", Replica: "a", Runtime: "vllm", Model: "tiny", Events: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5600", Topic: "kv", Ranks: 2},
			{URL: "http://127.0.0.1:8001", Events: NoEvents, Role: "prefill"},
		},
		Routing: Routing{Policy: "hint", LookupTimeout: Duration(7 * time.Millisecond), ExposeReplica: true, PDMinUncached: 99, PDPrefillTimeout: Duration(20 * time.Second)},
		Tokenizer: Tokenizer{
			Mode: "render", Folders: []string{"a=b"}, RenderURL: "http://127.0.0.1:8002",
			Timeout: Duration(150 * time.Millisecond), Parity: "off",
		},
		Index: Index{MaxMemory: 512 << 20, MaxEntries: 1_000_000, TTL: Duration(10 * time.Minute)},
		Log:   Log{Format: "text", Level: "debug"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseSaysWhatIsWrongAndWhere(t *testing.T) {
	for name, tc := range map[string]struct {
		text         string
		line, column int
		problem      string
	}{
		"unknown key":                {"listen: 127.0.0.1:1\nlisten_on: x\n", 2, 1, "listen_on"},
		"unknown key in an engine":   {"engines:\n  - url: http://h:1\n    event: tcp://h:2\n", 3, 5, "event"},
		"a list where a map belongs": {"routing: [a]\n", 1, 10, ""},
		"bad indentation":            {"engines:\n  - url: http://h:1\n   runtime: vllm\n", 3, 4, ""},
		"duplicate key":              {"tenant: a\ntenant: b\n", 2, 1, "tenant"},
		"wrong runtime":              {"engines:\n  - url: http://h:1\n    runtime: ollama\n", 3, 14, `"ollama": expected vllm, sglang, tensorrt-llm`},
		"url with a path":            {"engines:\n  - url: http://h:1/v1\n", 2, 10, "expected no path"},
		"url without a scheme":       {"engines:\n  - url: localhost:8000\n", 2, 10, "expected http://HOST:PORT"},
		"event socket without port":  {"engines:\n  - url: http://h:1\n    events: tcp://h\n", 3, 13, "expected tcp://HOST:PORT"},
		"event socket to bind":       {"engines:\n  - url: http://h:1\n    events: tcp://*:5557\n", 3, 13, "expected the engine's host"},
		"number that is none":        {"engines:\n  - url: http://h:1\n    ranks: two\n", 3, 12, `"two": expected a whole number`},
		"switch that is none":        {"routing:\n  exposeReplica: maybe\n", 2, 18, `"maybe": expected true or false`},
		"size that is none":          {"index:\n  maxMemory: lots\n", 2, 14, `"lots" is no size`},
		"duration that is none":      {"index:\n  ttl: soon\n", 2, 8, "soon"},
		"wrong policy":               {"routing:\n  policy: best\n", 2, 11, `"best": expected hint`},
		"half a rank":                {"engines:\n  - url: http://h:1\n    ranks: 1.5\n", 3, 12, `"1.5": expected a whole number`},
		"a port that is none":        {"listen: 127.0.0.1:99999\n", 1, 9, "a port from 0 to 65535"},
		"wrong version":              {"version: 2\n", 1, 10, "expected 1"},
		"two engines, one socket":    {"engines:\n  - url: http://h:1\n  - url: http://h:2\n", 3, 8, "belong to engine 0 already"},
		"two engines, one name":      {"engines:\n  - {url: 'http://h:1', replica: a}\n  - {url: 'http://h:2', replica: a, events: 'tcp://h:9'}\n", 3, 5, `replica "a" is engine 0 already`},
		"a second document":          {"tenant: a\n---\ntenant: b\n", 0, 0, "a second document"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("up.yaml", []byte(tc.text))
			var fault *ConfigError
			if !errors.As(err, &fault) {
				t.Fatalf("error %v, want a ConfigError", err)
			}
			if !strings.Contains(fault.Problem, tc.problem) {
				t.Errorf("problem %q does not contain %q", fault.Problem, tc.problem)
			}
			if fault.Line == 0 {
				t.Errorf("no line in %v", fault)
			}
			if tc.line != 0 && (fault.Line != tc.line || fault.Column != tc.column) {
				t.Errorf("at %d:%d, want %d:%d (%v)", fault.Line, fault.Column, tc.line, tc.column, fault)
			}
		})
	}
}

func TestParseTakesAFileThatSaysNothing(t *testing.T) {
	for text, taken := range map[string]bool{"{}\n": true, "": false, "# cut short\n": false} {
		if _, err := Parse("up.yaml", []byte(text)); (err == nil) != taken {
			t.Errorf("%q: error %v, want it taken: %v", text, err, taken)
		}
	}
}

func TestParseEngine(t *testing.T) {
	for name, tc := range map[string]struct {
		text    string
		want    Engine
		problem string
	}{
		"url alone":      {"http://127.0.0.1:8000", Engine{URL: "http://127.0.0.1:8000"}, ""},
		"every option":   {"http://h:1,events=tcp://h:2,replay=tcp://h:3,topic=kv,runtime=sglang,model=m,replica=r,ranks=4,role=prefill,bootstrap-port=9", Engine{URL: "http://h:1", Events: "tcp://h:2", Replay: "tcp://h:3", Topic: "kv", Runtime: "sglang", Model: "m", Replica: "r", Ranks: 4, Role: "prefill", BootstrapPort: 9}, ""},
		"unknown option": {"http://h:1,port=2", Engine{}, `unknown option "port"`},
		"unknown role":   {"http://h:1,role=both", Engine{}, "expected single, prefill or decode"},
		"given twice":    {"http://h:1,model=a,model=b", Engine{}, "model is given twice"},
		"no value":       {"http://h:1,model", Engine{}, "expected KEY=VALUE"},
		"no ranks":       {"http://h:1,ranks=0", Engine{}, "expected a number from 1"},
		"no url":         {"events=tcp://h:1", Engine{}, "expected http://HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseEngine(tc.text)
			if tc.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tc.problem) {
					t.Fatalf("error %v, want one with %q", err, tc.problem)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDefaultsFollowTheEngineAddress(t *testing.T) {
	got := Engine{URL: "http://10.0.0.7:8000/"}.withDefaults()
	want := Engine{URL: "http://10.0.0.7:8000", Replica: "10.0.0.7:8000", Runtime: "vllm", Ranks: 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(fullConfig))
	f.Add([]byte("engines:\n  - url: http://h:1\n    ranks: 2\n"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := Parse("up.yaml", data)
		if err != nil {
			var fault *ConfigError
			if !errors.As(err, &fault) {
				t.Errorf("error %v is no ConfigError", err)
			}
			return
		}
		if err := config.Validate(); err != nil {
			t.Errorf("parsed, yet not valid: %v", err)
		}
	})
}
