// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// apiError is an answer of the gateway itself, in the form of the OpenAI API.
type apiError struct {
	status  int
	code    string
	message string
	// param is the body field at fault, if one is.
	param string
	// reason is how it is counted, if its status does not tell.
	reason string
	// retryAfterSeconds is sent when positive.
	retryAfterSeconds int
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

// kind is the error's type in the OpenAI API.
func (e *apiError) kind() string {
	switch {
	case e.status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case e.status < http.StatusInternalServerError:
		return "invalid_request_error"
	default:
		return "server_error"
	}
}

func (e *apiError) body() []byte {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	answer := inner{Message: e.message, Type: e.kind(), Code: e.code}
	if e.param != "" {
		answer.Param = &e.param
	}
	body, _ := json.Marshal(map[string]inner{"error": answer}) // strings always encode
	return body
}

func (e *apiError) write(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	if e.retryAfterSeconds > 0 {
		header.Set("Retry-After", strconv.Itoa(e.retryAfterSeconds))
	}
	if e.status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.status)
	_, _ = w.Write(e.body())
}

func invalidRequest(param, message string) *apiError {
	return &apiError{status: http.StatusBadRequest, code: "invalid_request", param: param, message: message}
}

func unauthenticated(message string) *apiError {
	return &apiError{status: http.StatusUnauthorized, code: "unauthenticated", message: message}
}

func notFound(message string) *apiError {
	return &apiError{status: http.StatusNotFound, code: "not_found", message: message}
}

func modelNotFound(name string) *apiError {
	return &apiError{status: http.StatusNotFound, code: "model_not_found", param: "model",
		message: fmt.Sprintf("no replica serves the model %.256q", name)}
}

func noReadyReplica() *apiError {
	return &apiError{status: http.StatusServiceUnavailable, code: "no_ready_replica",
		message: "no replica is ready to serve this request", retryAfterSeconds: 1}
}

func draining() *apiError {
	return &apiError{status: http.StatusServiceUnavailable, code: "draining",
		message: "the gateway is shutting down", retryAfterSeconds: 1}
}

func overloaded() *apiError {
	return &apiError{status: http.StatusTooManyRequests, code: "overloaded",
		message: "too many requests are under way", retryAfterSeconds: 1}
}

const codeRateLimited = "rate_limited"

func upstreamFailed() *apiError {
	return &apiError{status: http.StatusBadGateway, code: "upstream_failed",
		message: "the replica failed before it answered"}
}

func upstreamTimeout() *apiError {
	return &apiError{status: http.StatusGatewayTimeout, code: "upstream_timeout",
		message: "the replica did not answer in time"}
}
