// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// apiError is an error in OpenAI's shape.
type apiError struct {
	status  int
	kind    string
	message string
	param   string // empty: null
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{
		status: http.StatusBadRequest, kind: "BadRequestError",
		message: fmt.Sprintf(format, args...), param: param,
	}
}

func notFound(message string) *apiError {
	return &apiError{status: http.StatusNotFound, kind: "NotFoundError", message: message}
}

type errorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func bodyOf(err error) (errorBody, int) {
	var api *apiError
	if !errors.As(err, &api) {
		api = &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: err.Error()}
	}
	body := errorBody{Message: api.message, Type: api.kind, Code: api.status}
	if api.param != "" {
		body.Param = &api.param
	}
	return body, api.status
}

func writeError(w http.ResponseWriter, err error) {
	body, status := bodyOf(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]errorBody{"error": body})
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// readJSON decodes a body; unknown fields are ignored, as engines do.
func readJSON(r *http.Request, into any) error {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return &apiError{
				status: http.StatusRequestEntityTooLarge, kind: "BadRequestError",
				message: fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit),
			}
		}
		return badRequest("", "the body is no valid request: %s", describe(err))
	}
	return nil
}

// describe names what is wrong with a body without repeating its content.
func describe(err error) string {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	var api *apiError
	switch {
	case errors.As(err, &api):
		return api.message
	case errors.As(err, &kind):
		return fmt.Sprintf("field %q is a JSON %s", kind.Field, kind.Value)
	case errors.As(err, &syntax):
		return fmt.Sprintf("JSON syntax error at byte %d", syntax.Offset)
	default:
		return "the JSON ended early"
	}
}
