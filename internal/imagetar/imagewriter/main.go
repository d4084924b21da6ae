// SPDX-License-Identifier: Apache-2.0

// Command imagewriter writes the images of a release.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/inferencecache/inference-cache/internal/imagetar"
)

func main() {
	var release imagetar.Release
	flag.StringVar(&release.Binary, "binary", "", "static Linux binary")
	flag.StringVar(&release.Out, "out", "bin/images", "folder to write to")
	flag.StringVar(&release.Registry, "registry", "", "host and path before the names (default ic.test)")
	flag.StringVar(&release.Tag, "tag", "", "tag of the images (default dev)")
	flag.Parse()
	names, err := release.Write()
	if err != nil {
		fmt.Fprintln(os.Stderr, "imagewriter:", err)
		os.Exit(1)
	}
	for _, name := range names {
		fmt.Println(name)
	}
}
