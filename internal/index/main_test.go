// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// longTests names the variable that makes the property and stress tests long.
const longTests = "INDEX_LONG_TESTS"

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(longTests) == "" {
		given := false
		flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
		if !given {
			_ = flag.Set("rapid.checks", "15")
		}
	}
	goleak.VerifyTestMain(m)
}
