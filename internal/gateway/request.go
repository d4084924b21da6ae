// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/tokenize"
)

// forbiddenFields make an engine connect somewhere or tell what it should not;
// no untrusted client may send them.
var forbiddenFields = []string{
	"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
	"data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "kv_cache_report_mode",
}

// maxReservedBytes is what a client's claimed length may reserve at once.
const maxReservedBytes = 256 << 10

// fields are the members of a body that the gateway itself reads.
type fields struct {
	// callerID is the client's own id of the request.
	callerID string
	// trusted accepts forbiddenFields.
	trusted bool
	model   string
	stream  bool
	// several is set for more than one answer to a prompt; engines differ in
	// how they count its tokens then.
	several bool
	salt    string
	// hasStreamOptions is set even if they are null.
	hasStreamOptions bool
	sticky           string
	// transfer is set by a client that arranges a transfer of KV itself.
	transfer bool
}

// readBody reads the whole body within its limits of size and time.
func (x *exchange) readBody() *apiError {
	options := &x.gateway.options
	if encoding := x.request.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return invalidRequest("", "compressed bodies are not accepted")
	}
	if x.request.ContentLength > options.MaxBodyBytes {
		return x.bodyTooLarge()
	}
	control := http.NewResponseController(x.writer)
	_ = control.SetReadDeadline(time.Now().Add(options.Timeouts.BodyRead))

	// A length is only a claim, so it does not reserve more than a little.
	var body bytes.Buffer
	body.Grow(int(min(max(x.request.ContentLength, 0)+bytes.MinRead, maxReservedBytes)))
	_, err := body.ReadFrom(http.MaxBytesReader(x.writer, x.request.Body, options.MaxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return x.bodyTooLarge()
	case errors.Is(err, io.ErrUnexpectedEOF), err != nil:
		return invalidRequest("", "the body ended early or came too slowly")
	}
	// Otherwise the deadline stays for what the server reads of the rest.
	_ = control.SetReadDeadline(time.Time{})
	x.body = body.Bytes()
	return nil
}

// refuseBody keeps the server from reading a body nobody wants: it answers at
// once and closes the connection after a moment.
func (x *exchange) refuseBody() {
	const moment = time.Second
	if x.request.ProtoMajor == 1 {
		x.writer.Header().Set("Connection", "close")
	}
	_ = http.NewResponseController(x.writer).SetReadDeadline(time.Now().Add(min(moment, x.gateway.options.Timeouts.BodyRead)))
}

func (x *exchange) bodyTooLarge() *apiError {
	return &apiError{status: http.StatusRequestEntityTooLarge, code: "request_too_large",
		message: fmt.Sprintf("the body is larger than %d bytes", x.gateway.options.MaxBodyBytes)}
}

// parseBody reads the members the gateway needs and refuses those clients must
// not send.
func (x *exchange) parseBody() *apiError {
	x.prompt = tokenize.Prompt{Chat: x.route.chat, Partition: x.partition()}
	x.fields.trusted = x.trusted
	other := chatform.Request{Form: x.route.form}
	var fault *apiError
	err := jsonscan.Object(x.body, func(key, value []byte) error {
		if fault = x.fields.set(key, value); fault != nil {
			return fault
		}
		if x.route.generates {
			x.noteSticky(key, value)
		}
		switch {
		case x.route.form != chatform.None:
			other.Add(key, value)
		case x.route.generates:
			x.prompt.Add(key, value)
		}
		return nil
	})
	var syntax *jsonscan.SyntaxError
	switch {
	case fault != nil:
		if fault.code == codeForbiddenField {
			x.gateway.metrics.forbidden.WithLabelValues(fault.param).Inc()
		}
		return fault
	case errors.As(err, &syntax):
		return invalidRequest("", syntax.Error())
	case err != nil:
		return invalidRequest("", "the body is not a JSON object")
	}
	if x.route.form != chatform.None {
		x.addChat(&other)
	}
	return nil
}

// addChat makes the prompt that of the chat completion with the same text.
func (x *exchange) addChat(other *chatform.Request) {
	messages, tools, ok := other.Chat()
	if !ok {
		x.prompt.SetOpaque()
		messages = other.Text()
	}
	x.prompt.Add([]byte("messages"), messages)
	if len(tools) > 0 {
		x.prompt.Add([]byte("tools"), tools)
	}
}

const codeForbiddenField = "forbidden_field"

func (f *fields) set(key, value []byte) *apiError {
	isNull := bytes.Equal(value, []byte("null"))
	ok := true
	switch name := string(key); name {
	case "model":
		f.model, ok = jsonscan.String(value)
		ok = ok && len(f.model) <= maxModelBytes
	case "stream":
		f.stream = bytes.Equal(value, []byte("true"))
		ok = f.stream || isNull || bytes.Equal(value, []byte("false"))
	case "n":
		f.several = !isNull && !bytes.Equal(value, []byte("1"))
	case "rid", "request_id":
		if id, isText := jsonscan.String(value); isText {
			f.callerID = id
		}
	case "stream_options":
		f.hasStreamOptions = true
	case "cache_salt":
		f.salt, ok = jsonscan.String(value)
		ok = ok || isNull
	default:
		if !f.trusted && slices.Contains(forbiddenFields, name) && !isNull {
			return &apiError{status: http.StatusBadRequest, code: codeForbiddenField, param: name,
				message: "this field is not accepted from clients"}
		}
		f.transfer = f.transfer || !isNull && (name == "kv_transfer_params" || name == "bootstrap_room")
	}
	if !ok {
		return invalidRequest(string(key), "unexpected type or length of "+string(key))
	}
	return nil
}
