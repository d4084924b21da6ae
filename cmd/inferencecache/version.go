// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/inferencecache/inference-cache/internal/version"
)

func (c *cli) newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and platform",
		Args:  noArguments,
		RunE: func(*cobra.Command, []string) error {
			info := version.Get()
			if asJSON {
				return json.NewEncoder(c.stdout).Encode(info)
			}
			_, err := fmt.Fprintln(c.stdout, info)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
