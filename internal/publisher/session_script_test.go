// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output of testdata scripts")

// TestSessionScripts runs testdata/session/*.txt. A script alternates commands
// and what they print; see testdata/session/README.md for the language.
func TestSessionScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/session/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(want))
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("output differs; got:\n%s", got)
			}
		})
	}
}

// runScript returns the script with the output that its commands have now.
func runScript(t *testing.T, text string) string {
	script := newScript(t)
	var out bytes.Buffer
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "  "):
			// Output of the command before; written anew below.
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		default:
			fmt.Fprintln(&out, line)
			for _, printed := range script.run(line) {
				fmt.Fprintln(&out, "  "+printed)
			}
		}
	}
	return out.String()
}

type script struct {
	t       *testing.T
	config  SessionConfig
	session *Session
	seen    replica
	now     time.Time
	names   map[uint64]string
}

func newScript(t *testing.T) *script {
	return &script{t: t, seen: replica{}, now: testStart, names: map[uint64]string{}}
}

func (s *script) run(line string) []string {
	words := strings.Fields(line)
	if words[0] == "config" {
		s.configure(words[1:])
		return nil
	}
	if s.session == nil {
		s.session = NewSession(s.config)
	}
	var step Step
	switch words[0] {
	case "connect":
		step = s.session.Connected(s.now)
	case "disconnect":
		s.session.Disconnected(s.now)
	case "live":
		step = s.session.Live(s.number(words[1]), s.payload(words[2:]), s.now)
	case "replayed":
		step = s.session.Replayed(s.number(words[1]), s.payload(words[2:]), s.now)
	case "done":
		step = s.session.ReplayDone(ReplayResult(words[1]), s.now)
	case "reset":
		step = s.session.Reset(ResetCause(words[1]), s.now)
	case "badframe":
		s.session.BadFrame()
	case "learn":
		s.session.LearnBlockSize(int(s.number(words[1])))
	case "advance":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
	case "status":
		return s.status()
	default:
		s.t.Fatalf("unknown command %q", line)
	}
	s.seen.apply(step.Deltas)
	checkSession(s.t, s.session, s.seen)
	return s.describe(step)
}

func (s *script) number(word string) uint64 {
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) configure(words []string) {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "block-size":
			s.config.BlockSize = int(s.number(value))
		case "scheme":
			s.config.Scheme = value
		case "replay":
			s.config.HasReplay = true
		case "on-gap":
			s.config.OnGap = GapPolicy(value)
		case "parked":
			s.config.ParkedBlocks = int(s.number(value))
		case "max-blocks":
			s.config.MaxBlocks = int(s.number(value))
		case "ignore-removed":
			s.config.IgnoreBlockRemoved = true
		case "hidden":
			s.config.HiddenIdentity = HiddenIdentityPolicy(value)
		case "lora-unattributable":
			s.config.LoRAUnattributable = true
		case "rank":
			s.config.Rank, s.config.HasRank = int(s.number(value)), true
		default:
			s.t.Fatalf("unknown setting %q", word)
		}
	}
}

func (s *script) payload(words []string) []byte {
	if len(words) == 1 && words[0] == "garbage" {
		return []byte{0xc1}
	}
	events := []map[string]any{}
	for _, word := range words {
		events = append(events, s.event(word))
	}
	return payload(s.t, s.now, events...)
}

// event reads name(chain-range, option=value, ...).
func (s *script) event(word string) map[string]any {
	name, rest, _ := strings.Cut(strings.TrimSuffix(word, ")"), "(")
	if name == "clear" {
		return clearEvent()
	}
	parts := strings.Split(rest, ",")
	chain, from, to := s.blocks(parts[0])
	hashes := chain
	more := map[string]any{}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "hash":
			hashes = value
		case "tier":
			more["medium"] = value
		case "lora":
			more["lora_name"] = value
		case "salt":
			more["cache_salt"] = value
			s.name(chain, value, to)
		case "group":
			more["group_idx"] = int(s.number(value))
		case "kind":
			more["kv_cache_spec_kind"] = value
		case "locality":
			more["locality"] = value
		case "empty":
			more["token_ids"], more["block_size"], more["parent_block_hash"] = nil, 0, nil
		case "size":
			more["block_size"] = int(s.number(value))
		default:
			s.t.Fatalf("unknown option %q", part)
		}
	}
	s.name(chain, "", to)
	if name == "remove" {
		return removeEvent(hashes, from, to, more)
	}
	return storeEvent(chain, hashes, from, to, more)
}

// blocks reads a3 or a1..3.
func (s *script) blocks(word string) (chain string, from, to int) {
	split := strings.IndexAny(word, "0123456789")
	first, last, ranged := strings.Cut(word[split:], "..")
	from = int(s.number(first))
	if to = from; ranged {
		to = int(s.number(last))
	}
	return word[:split], from, to
}

func (s *script) name(chain, salt string, n int) {
	for i, key := range blockKeys(chain, salt, n) {
		name := fmt.Sprintf("%s%d", chain, i+1)
		if salt != "" {
			name += "~" + salt
		}
		s.names[key] = name
	}
}

func (s *script) describe(step Step) (out []string) {
	for _, delta := range step.Deltas {
		var ops []string
		for _, op := range delta.Ops {
			ops = append(ops, s.op(op))
		}
		out = append(out, "delta "+strings.Join(ops, " | "))
	}
	if step.Replay {
		out = append(out, fmt.Sprintf("replay from %d", step.ReplayFrom))
	}
	if step.Reset != ResetNone {
		out = append(out, "reset "+string(step.Reset))
	}
	return out
}

func (s *script) op(op *pb.SyncOp) string {
	switch {
	case op.GetCleared() != nil:
		return "clear"
	case op.GetRemoved() != nil:
		return "-" + s.keys(op.GetRemoved().Keys) + suffix(op.GetRemoved().AdapterId)
	default:
		run := op.GetStored()
		return fmt.Sprintf("+T%d%s%s", run.Tier, s.keys(run.Keys), suffix(run.AdapterId))
	}
}

func suffix(adapter string) string {
	if adapter == "" {
		return ""
	}
	return " @" + adapter
}

func (s *script) keys(keys []uint64) string {
	var out strings.Builder
	for _, key := range keys {
		name, ok := s.names[key]
		if !ok {
			name = fmt.Sprintf("%x", fingerprint.Wire([]uint64{key}))
		}
		out.WriteString(" " + name)
	}
	return out.String()
}

func (s *script) status() []string {
	status := s.session.Status()
	line := fmt.Sprintf("%s, %d resident, next after %d", status.View, s.session.ResidentBlocks(), status.LastSequence)
	if !status.HasSequence {
		line = fmt.Sprintf("%s, %d resident, no sequence", status.View, s.session.ResidentBlocks())
	}
	counts := map[string]uint64{
		"gaps": status.Gaps, "missed": status.MissedBatches, "duplicates": status.Duplicates,
		"applied": status.Applied, "no-ops": status.NoOps,
		"parked": uint64(status.ParkedBlocks), "suspect": uint64(status.SuspectBlocks),
		"withdrawn": uint64(status.WithdrawnBlocks), "hidden": status.HiddenIdentities,
		"rank-disagreements": status.RankDisagreements,
	}
	for reason, n := range status.Skipped {
		counts["skipped-"+string(reason)] = n
	}
	for cause, n := range status.Resets {
		counts["reset-"+string(cause)] = n
	}
	for result, n := range status.Replays {
		counts["replay-"+string(result)] = n
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] > 0 {
			line += fmt.Sprintf(", %s %d", name, counts[name])
		}
	}
	out := []string{line}
	if status.StreamConflict {
		out = append(out, "stream conflict")
	}
	if status.BlockSizeConflict {
		out = append(out, fmt.Sprintf("block size %d refused, %d known", status.OtherBlockSize, status.BlockSize))
	}
	return out
}
