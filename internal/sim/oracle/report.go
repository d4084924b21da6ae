// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// Arrivals turns a workload into arrivals whose answers are those of engines
// with the given answer seed.
func Arrivals(requests []workload.Request, answerSeed uint64) []Arrival {
	arrivals := make([]Arrival, len(requests))
	for i, request := range requests {
		answer := tinymodel.NewAnswer(request.Prompt, answerSeed)
		arrivals[i] = Arrival{
			At: request.At, Prompt: request.Prompt, MaxTokens: request.AnswerTokens,
			Sample: func(index int) (uint32, bool) { return answer.Token(index, true) },
		}
	}
	return arrivals
}

// Summary condenses outcomes.
type Summary struct {
	ReusedTokens   int
	ComputedTokens int
	// These are times to the first token.
	FirstTokenMean, FirstTokenP50, FirstTokenP99 time.Duration
	// MaxMeanLoad is the largest share of requests over the mean share.
	MaxMeanLoad float64
}

// Summarize condenses the outcomes of a run with the given replicas.
func Summarize(replicas int, arrivals []Arrival, outcomes []Outcome) Summary {
	var s Summary
	served := make([]int, replicas)
	first := make([]time.Duration, len(outcomes))
	for i, outcome := range outcomes {
		s.ReusedTokens += outcome.CachedTokens
		s.ComputedTokens += len(arrivals[i].Prompt) - outcome.CachedTokens
		served[outcome.Replica]++
		first[i] = outcome.FirstToken
		s.FirstTokenMean += outcome.FirstToken / time.Duration(len(outcomes))
	}
	s.FirstTokenP50, s.FirstTokenP99 = Percentile(first, 0.50), Percentile(first, 0.99)
	s.MaxMeanLoad = MaxOverMean(served)
	return s
}

// Percentile returns the value below which a share p of the values lies, by
// the nearest rank; 0 without values.
func Percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

// MaxOverMean returns the largest of counts over their mean; 0 if all are 0.
func MaxOverMean(counts []int) float64 {
	sum := 0
	for _, count := range counts {
		sum += count
	}
	if sum == 0 {
		return 0
	}
	return float64(slices.Max(counts)) * float64(len(counts)) / float64(sum)
}

// SeenBefore is the number of prompt tokens, in full blocks, whose prefix some
// earlier request or its answer had: what one engine without limits of memory
// and speed would reuse. At least one token of a prompt is always computed.
func SeenBefore(arrivals []Arrival, blockSize int) int {
	seen := make(map[uint64]bool)
	total := 0
	var keys []uint64
	for _, arrival := range arrivals {
		root := fingerprint.SaltParent(arrival.Identity.Salt + "\n" + arrival.Identity.Adapter)
		whole := slices.Clone(arrival.Prompt)
		for i := range arrival.MaxTokens - 1 { // the last token is never computed
			token, end := arrival.Sample(i)
			if end {
				break
			}
			whole = append(whole, token)
		}
		keys = fingerprint.Append(keys[:0], root, whole, blockSize)
		run, limit := 0, (len(arrival.Prompt)-1)/blockSize
		for run < limit && seen[keys[run]] {
			run++
		}
		total += run * blockSize
		for _, key := range keys {
			seen[key] = true
		}
	}
	return total
}
