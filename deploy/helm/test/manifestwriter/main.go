// SPDX-License-Identifier: Apache-2.0

// Command manifestwriter renders the Helm chart into install.yaml and the
// kustomize folder.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/inferencecache/inference-cache/deploy/helm/test/manifest"
)

func main() {
	folder := flag.String("chart", "../inference-cache", "folder of the chart")
	out := flag.String("out", "../..", "folder to write to")
	values := flag.String("values", "", "file of values that all forms start from (default the chart's own values)")
	flag.Parse()
	if err := run(*folder, *values, *out); err != nil {
		fmt.Fprintln(os.Stderr, "manifestwriter:", err)
		os.Exit(1)
	}
}

func run(folder, valuesFile, out string) error {
	chart, err := manifest.Load(folder)
	if err != nil {
		return err
	}
	var values []byte
	if valuesFile != "" {
		if values, err = os.ReadFile(valuesFile); err != nil {
			return fmt.Errorf("read -values: %w", err)
		}
	}
	return manifest.Write(context.Background(), chart, string(values), out)
}
