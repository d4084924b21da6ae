// SPDX-License-Identifier: Apache-2.0

package storage_test

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// failing is a read that always fails.
func failing(err error) func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
	return func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return err
	}
}
