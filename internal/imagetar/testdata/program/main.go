// SPDX-License-Identifier: Apache-2.0

// Command program has a module to list.
package main

import (
	"fmt"

	"github.com/google/go-cmp/cmp"
)

func main() { fmt.Println(cmp.Equal(1, 1)) }
