// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

const minSaltKeyBytes = 16

// readSaltKey reads the secret that salts are derived with.
func readSaltKey(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key of tenant salts: %w", err)
	}
	key := bytes.TrimSpace(text)
	if len(key) < minSaltKeyBytes {
		return nil, fmt.Errorf("key of tenant salts: %d bytes, expected at least %d", len(key), minSaltKeyBytes)
	}
	return key, nil
}

// deriveSalt returns a salt that only clients of the tenant can have.
func deriveSalt(key []byte, tenant, clientSalt string) string {
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(tenant + "\x00" + clientSalt)) // never fails
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// saltBody puts the derived salt in the place of the client's.
func (x *exchange) saltBody() *apiError {
	key := x.gateway.saltKey
	if key == nil || x.route.unsalted {
		return nil
	}
	salt := deriveSalt(key, x.caller.Tenant, x.fields.salt)
	body, err := withSalt(x.body, salt)
	if err != nil {
		return invalidRequest("", "the body is not a JSON object")
	}
	x.body, x.fields.salt = body, salt
	return nil
}

// errOffset means that a member is not part of the body it was found in.
var errOffset = errors.New("member outside its object")

// withSalt returns a JSON object whose only cache_salt is the given one; all
// other bytes stay as they are. salt needs no escaping.
func withSalt(body []byte, salt string) ([]byte, error) {
	out := make([]byte, 0, len(body)+len(salt)+len(`,"cache_salt":""`))
	copied, found, members := 0, false, 0
	err := jsonscan.Object(body, func(key, value []byte) error {
		members++
		if string(key) != "cache_salt" {
			return nil
		}
		// value is a part of body, so it ends as far from the end of the
		// same array.
		start := cap(body) - cap(value)
		if start < copied || start+len(value) > len(body) {
			return errOffset
		}
		out = append(append(append(append(out, body[copied:start]...), '"'), salt...), '"')
		copied, found = start+len(value), true
		return nil
	})
	if err != nil || found {
		return append(out, body[copied:]...), err
	}
	end := bytes.LastIndexByte(body, '}')
	if end < 0 {
		return nil, errOffset
	}
	out = append(out, body[:end]...)
	if members > 0 {
		out = append(out, ',')
	}
	out = append(append(append(out, `"cache_salt":"`...), salt...), '"')
	return append(out, body[end:]...), nil
}
