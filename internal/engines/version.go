// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// saltsSince are the first versions whose KV events show cache salts. Runtimes
// that are missing never do.
var saltsSince = map[string][]int{
	VLLM:   {0, 17},
	SGLang: {0, 5, 18},
}

// Version asks the engine at baseURL for its version.
func Version(ctx context.Context, client *http.Client, baseURL, runtime string) (string, error) {
	base, err := url.Parse(baseURL)
	if err != nil {
		return "", fmt.Errorf("engine URL %.200q: http://host:port expected", baseURL)
	}
	path := "/version"
	if runtime == SGLang {
		path = "/server_info"
	}
	var answer struct {
		Version string `json:"version"`
	}
	if err := getJSON(ctx, client, base, path, &answer); err != nil {
		return "", err
	}
	if answer.Version == "" || len(answer.Version) > 128 {
		return "", errors.New("the engine tells no version")
	}
	return answer.Version, nil
}

// ShowsSalts reports whether the KV events of an engine show cache salts. A
// version that is no dotted number does not.
func ShowsSalts(runtime, version string) bool {
	since, known := saltsSince[runtime]
	if !known {
		return false
	}
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	for i, least := range since {
		if i == len(parts) {
			return false
		}
		number, ok := leadingNumber(parts[i])
		if !ok || number < least {
			return false
		}
		if number > least {
			return true
		}
	}
	return true
}

// leadingNumber reads the digits at the start of a part of a version.
func leadingNumber(part string) (int, bool) {
	number, digits := 0, 0
	for digits < len(part) && digits < 6 && part[digits] >= '0' && part[digits] <= '9' {
		number = number*10 + int(part[digits]-'0')
		digits++
	}
	return number, digits > 0
}

// Offers asks whether the engine at baseURL has an endpoint, by a GET of what
// takes only POST.
func Offers(ctx context.Context, client *http.Client, baseURL, path string) (bool, error) {
	body, err := get(ctx, client, baseURL+path, "application/json")
	var status *StatusError
	switch {
	case err == nil:
		return true, body.Close()
	case errors.As(err, &status):
		return status.Code != http.StatusNotFound, nil
	default:
		return false, err
	}
}
