// SPDX-License-Identifier: Apache-2.0

package webhookcert

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
)

// Files are a Source whose certificate is in a directory, as tls.crt and
// tls.key. They may come later.
type Files struct {
	follower
	dir string
}

// NewFiles returns a source without a certificate. Of the options, Namespace
// and Name are not used.
func NewFiles(dir string, o SourceOptions) *Files {
	return &Files{newFollower(o), dir}
}

// Start follows the files until ctx ends. While they cannot be used, the last
// certificate stays in use.
func (f *Files) Start(ctx context.Context) error { return f.follow(ctx, f.dir, f.Load) }

// Load reads the files once.
func (f *Files) Load(context.Context) error {
	cert, err := os.ReadFile(filepath.Join(f.dir, corev1.TLSCertKey))
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(f.dir, corev1.TLSPrivateKeyKey))
	if err != nil {
		return fmt.Errorf("read its key: %w", err)
	}
	if !f.use(cert, key) {
		return fmt.Errorf("%s holds no certificate with its key", f.dir)
	}
	return nil
}
