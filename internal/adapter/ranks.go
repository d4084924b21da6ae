// SPDX-License-Identifier: Apache-2.0

package adapter

import "github.com/inferencecache/inference-cache/internal/commandline"

// MaxRanks is the largest number of data-parallel ranks of an engine.
const MaxRanks = 1024

// Ranks is how many data-parallel ranks the flags of an engine ask for; 0 is
// unknown.
func Ranks(line commandline.Line) int32 {
	n, _ := line.Number(MaxRanks, "--data-parallel-size", "-dp", "--dp-size", "--dp")
	return n
}
