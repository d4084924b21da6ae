// SPDX-License-Identifier: Apache-2.0

package caller

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// keyPrefix makes keys easy to find for scanners of leaked secrets.
const keyPrefix = "ick_"

// AddKey adds a new key of a tenant to a file, which is created if need be, and
// returns the key. The file holds only its SHA-256.
func AddKey(path, tenant, limits string) (key string, err error) {
	if err := CheckTenant(tenant); err != nil {
		return "", err
	}
	if _, err := ParseLimits(limits); err != nil {
		return "", err
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	sum := sha256.Sum256([]byte(key))
	line := hex.EncodeToString(sum[:]) + " " + tenant
	if limits != "" {
		line += " " + limits
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("add a key: %w", err)
	}
	if err := errors.Join(appendLine(file, line), file.Close()); err != nil {
		return "", fmt.Errorf("add a key: %w", err)
	}
	return key, nil
}

// appendLine refuses to add to a file that would not be read afterwards.
func appendLine(file *os.File, line string) error {
	text, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	added := []byte(line + "\n")
	if len(text) > 0 && text[len(text)-1] != '\n' {
		added = append([]byte("\n"), added...)
	}
	if _, err := parseKeys(append(text, added...)); err != nil {
		return err
	}
	_, err = file.Write(added)
	return err
}
