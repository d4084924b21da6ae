// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxBodyBytes bounds a body as it is sent.
const maxBodyBytes = 1 << 20

var (
	errTooLarge = errors.New("body too large")
	errEncoding = errors.New("unsupported content encoding: expected identity or gzip")
)

// readBody returns the body as sent, and whether it is compressed. Errors are
// errTooLarge, errEncoding or those of the connection.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, compressed bool, err error) {
	encodings := r.Header.Values("Content-Encoding")
	switch encoding := strings.ToLower(strings.TrimSpace(strings.Join(encodings, ","))); encoding {
	case "", "identity":
	case "gzip":
		compressed = true
	default:
		return nil, false, errEncoding
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, false, fmt.Errorf("%w: more than %d bytes", errTooLarge, maxBodyBytes)
	case err != nil:
		return nil, false, fmt.Errorf("read body: %w", err)
	}
	return body, compressed, nil
}

// inflate returns the plain body, of at most limit bytes.
func inflate(body []byte, limit int) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("decompress body: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(reader, int64(limit)+1))
	switch {
	case len(plain) > limit:
		return nil, fmt.Errorf("%w: more than %d bytes when decompressed", errTooLarge, limit)
	case err != nil:
		return nil, fmt.Errorf("decompress body: %w", err)
	}
	return plain, nil
}

// deflate compresses an answer.
func deflate(plain []byte) ([]byte, error) {
	var compressed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Write(plain); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return compressed.Bytes(), nil
}

// acceptsGzip reports whether a client takes compressed answers.
func acceptsGzip(r *http.Request) bool {
	for _, accepted := range strings.Split(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		coding, quality, _ := strings.Cut(accepted, ";")
		if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			return !zeroQuality(quality)
		}
	}
	return false
}

func zeroQuality(parameter string) bool {
	value, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(parameter)), "q=")
	return ok && strings.Trim(value, "0.") == ""
}
